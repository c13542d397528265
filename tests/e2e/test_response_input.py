"""What is wrong with a request for a response is told by name; what clients spell out for nothing is taken."""

from typing import Any

import pytest

from tests.e2e.responding import PATH, body
from tests.e2e.serving import Server, long


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": "\ud800"}, "input"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "a", "name": "joe"}]}, "input[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}]}, "input[0].summary"),
        ({"instructions": 5}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 9_999_999}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 1}, "n"),
        ({"messages": []}, "messages"),
        ({"temperature": 3}, "temperature"),
        ({"stop": ""}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "name": "a", "parameters": {"type": "string"}}]}, "tools[0].parameters"),
        ({"tools": [{"type": "function", "name": "a"}] * 2}, "tools"),
        ({"tool_choice": {"type": "function", "name": "a"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "{}"}]}, "input"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "no"}}}}, "text.format"),
        ({"text": {"format": {"type": "json_object"}}, "ignore_eos": True}, "ignore_eos"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"truncation": "middle"}, "truncation"),
    ],
)  # fmt: skip
def test_a_bad_body_is_a_400_also_for_a_stream(server: Server, changes: Any, param: str, stream: bool) -> None:
    response = server.post(body(**changes, stream=stream), PATH)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_what_is_said_of_messages_is_said_of_the_input(server: Server) -> None:
    response = server.post(body(instructions="x" * 600), PATH)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_what_is_not_there_is_a_404(server: Server) -> None:
    for changes, param in (
        ({"model": "gpt-4"}, "model"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": f"resp_{'0' * 48}"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ):
        response = server.post(body(**changes), PATH)
        assert (response.status_code, response.json()["error"]["param"]) == (404, param)


def test_defaults_that_clients_spell_out_are_taken(server: Server) -> None:
    spelt = {
        "background": False, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "service_tier": "auto",
        "reasoning": {"effort": None, "summary": None}, "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "include": ["reasoning.encrypted_content"], "top_logprobs": 0, "previous_response_id": None, "user": "me",
        "prompt_cache_key": "k", "safety_identifier": "s", "instructions": None, "max_tool_calls": None,
    }  # fmt: skip
    answer = server.post(body(**spelt), PATH).json()
    assert (answer["user"], answer["prompt_cache_key"], answer["safety_identifier"]) == ("me", "k", "s")


def test_a_session_is_not_named(server: Server) -> None:
    response = server.post(body(), PATH, **{"X-Session-ID": "mine"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Session-ID")


def test_a_full_queue_refuses_responses_too(server: Server) -> None:
    with server.stream(), server.stream(), server.queued(long()):
        assert server.post(body(), PATH).status_code == 429
