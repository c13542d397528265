"""Functions that the model calls, over a real server and through OpenAI's SDK; it always makes the same calls."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.e2e.serving import MODEL, Server
from tests.scripted import save_scripted_model

TEXT = "Let me see.\n"
ROME = ["<tool_call>\n{", '"name": "weather", "arguments": ', '{"city"', ': "Ro', 'me"}', "}\n</tool_call>"]
OSLO = ["\n<tool_call>", '\n{"name": "wea', 'ther", "argum', 'ents": {"city": "Oslo"', "}}", "\n</tool_", "call>"]
SAID = "".join([TEXT, *ROME, *OSLO])


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
USER = {"role": "user", "content": "How is the weather?"}


@pytest.fixture(scope="module")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_scripted_model(tmp_path_factory.mktemp("scripted"), [TEXT, *ROME, *OSLO])


@pytest.fixture(scope="module")
def server(scripted_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(scripted_model, tmp_path_factory.mktemp("server"), max_output_tokens=100, capacity=4096) as server:
        yield server.wait_until_ready()


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client:
        yield client


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [USER], "tools": [TOOL], "temperature": 0} | changes


def post(server: Server, **changes: Any) -> dict[str, Any]:
    response = server.post(body(**changes))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def made(message: dict[str, Any]) -> list[tuple[str, str]]:
    assert all(call["type"] == "function" for call in message["tool_calls"])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


BOTH = [("weather", '{"city": "Rome"}'), ("weather", '{"city": "Oslo"}')]


def test_calls_in_a_whole_answer(server: Server) -> None:
    answer = post(server)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == TEXT.strip()
    assert made(choice["message"]) == BOTH
    ids = {call["id"] for call in choice["message"]["tool_calls"]}
    assert len(ids) == 2
    assert all(id_.startswith("call_") for id_ in ids)
    assert answer["usage"]["completion_tokens"] == 1 + len(ROME) + len(OSLO) + 1


def test_calls_in_a_stream_come_in_openais_order(server: Server) -> None:
    response = server.post(body(stream=True, lookahead={"strategy": "autoregressive"}))
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    deltas = [choice["delta"] for choice in choices[1:-1]]
    assert deltas[0] == {"content": TEXT.strip()}
    calls = [delta["tool_calls"][0] for delta in deltas[1:] if len(delta) == len(delta["tool_calls"]) == 1]
    assert len(calls) == len(deltas) - 1
    for index, (name, arguments) in enumerate(BOTH):
        first, *rest = (call for call in calls if call["index"] == index)
        assert list(first) == ["index", "id", "type", "function"]
        assert first["function"] == {"name": name, "arguments": ""}
        assert all(list(call) == ["index", "function"] and list(call["function"]) == ["arguments"] for call in rest)
        assert all(call["function"]["arguments"] for call in rest)
        assert "".join(call["function"]["arguments"] for call in rest) == arguments
    assert [call["index"] for call in calls] == sorted(call["index"] for call in calls)
    assert sum(call["index"] == 0 for call in calls) > 2


def test_the_sdk_takes_them_streamed_or_not(client: OpenAI) -> None:
    message = client.chat.completions.create(**body()).choices[0].message
    assert message.content == TEXT.strip()
    assert message.tool_calls is not None
    whole = [call.function for call in message.tool_calls if call.type == "function"]
    assert [(function.name, function.arguments) for function in whole] == BOTH
    streamed: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**body(stream=True)):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            name, arguments = streamed.get(call.index, ["", ""])
            streamed[call.index] = [name + (call.function.name or ""), arguments + (call.function.arguments or "")]
    assert [tuple(call) for call in streamed.values()] == BOTH


def test_one_call_at_most(server: Server) -> None:
    answer = post(server, parallel_tool_calls=False)
    assert made(answer["choices"][0]["message"]) == BOTH[:1]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens"] == 1 + len(ROME)


def test_without_choice_of_a_call_all_is_text(server: Server) -> None:
    for changes in (
        {"tool_choice": "none"},
        {"tools": None},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ):
        choice = post(server, **changes)["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": SAID, "refusal": None}
        assert choice["finish_reason"] == "stop"


def test_a_call_that_is_cut_short_is_told_so(server: Server) -> None:
    choice = post(server, max_tokens=5)["choices"][0]
    assert made(choice["message"]) == [("weather", '{"city": "Ro')]
    assert choice["finish_reason"] == "length"


def results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": f"{number} degrees"}
        for number, call in enumerate(message["tool_calls"])
    ]


def test_a_conversation_with_calls_goes_on_by_what_is_new(server: Server) -> None:
    """As SDKs send it back, and as others spell it: with null for no text, and with other white space in arguments."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, USER]
    session, read = None, []
    for turn in range(5):
        answer = post(server, messages=messages, stream=False)
        block, usage = answer["session"], answer["usage"]
        assert (block["matched"], block["rebuilt"]) == ("extend" if turn else "new", None)
        assert session in (None, block["id"])
        session = block["id"]
        read.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
        message = answer["choices"][0]["message"]
        if turn % 2:
            for call in message["tool_calls"]:
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
        messages += [message, *results(message)]
    assert max(read[1:]) < 200 < read[0]
    assert len(set(read[1:])) == 1
    other = post(server, messages=messages, tools=[TOOL, {"type": "function", "function": {"name": "other"}}])
    assert other["session"]["matched"] == "new"


def test_a_named_session_remembers_tools_and_calls(server: Server) -> None:
    def say(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return post(server, messages=list(messages), session_id="named", **changes)

    message = say(USER)["choices"][0]["message"]
    answer = say(*results(message), tools=None, session_mode="append")
    assert answer["session"]["rebuilt"] is None
    message = answer["choices"][0]["message"]
    assert made(message) == BOTH
    wrong = {"role": "tool", "tool_call_id": "call_other", "content": "x"}
    refused = server.post(body(messages=[wrong], session_id="named", session_mode="append"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].tool_call_id")
    rebuilt = say(*results(message), tools=[{"type": "function", "function": {"name": "f"}}], session_mode="append")
    assert rebuilt["session"]["rebuilt"] == "tools"
    again = say({"role": "user", "content": "more"}, tools=None, session_mode="append")
    assert again["session"]["rebuilt"] is None
    assert "tool_calls" not in again["choices"][0]["message"]
    refused = server.post(body(messages=[wrong], session_id="named", session_mode="append"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].role")


CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "x"}


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("messages[0].role", {"messages": [RESULT]}),
        ("messages[1].role", {"messages": [USER, RESULT]}),
        ("messages[2].tool_call_id", {"messages": [USER, CALLED, RESULT | {"tool_call_id": "2"}]}),
        ("messages[2].role", {"messages": [USER, CALLED, USER]}),
        ("messages", {"messages": [USER, CALLED]}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "other"}}}),
        ("tool_choice", {"tool_choice": "auto", "tools": None}),
        ("parallel_tool_calls", {"parallel_tool_calls": True, "tools": None}),
    ],
)
def test_what_makes_no_sense_is_refused(server: Server, param: str, changes: dict[str, Any]) -> None:
    response = server.post(body(**changes))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_results_may_follow_calls_that_were_made_elsewhere(server: Server) -> None:
    assert post(server, messages=[USER, CALLED, RESULT, USER], tools=None)["choices"][0]["message"]["content"] == SAID


def test_arguments_that_spell_half_a_character_are_text(server: Server) -> None:
    """JSON may, and a model that is asked for JSON may write it; no tokenizer takes it."""
    function = {"name": "weather", "arguments": r'{"city": "\ud800"}'}
    called = CALLED | {"tool_calls": [CALL | {"function": function}]}
    assert post(server, messages=[USER, called, RESULT])["choices"][0]["finish_reason"]


def test_a_generic_block_can_be_refused(scripted_model: Path, tmp_path: Path) -> None:
    with Server(scripted_model, tmp_path, tool_block="refuse") as server:
        server.wait_until_ready()
        for changes, param in (({}, "tools"), ({"messages": [USER, CALLED, RESULT], "tools": None}, "messages[1]")):
            response: httpx.Response = server.post(body(**changes))
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert post(server, tools=None)["choices"][0]["message"]["content"] == SAID


def test_choices_have_calls_of_their_own(server: Server) -> None:
    answer = post(server, n=3)
    messages = [choice["message"] for choice in answer["choices"]]
    assert [made(message) for message in messages] == [BOTH] * 3
    assert len({call["id"] for message in messages for call in message["tool_calls"]}) == 6
    for message in messages:
        goes_on = post(server, messages=[USER, message, *results(message)])
        assert goes_on["session"]["matched"] == "extend"


def test_a_conversation_with_calls_goes_on_after_a_restart(scripted_model: Path, tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [USER]
    for matched in ("new", "extend"):
        with Server(scripted_model, tmp_path, capacity=4096) as server:
            server.wait_until_ready()
            for expected in (matched, "extend"):
                answer = post(server, messages=messages)
                assert (answer["session"]["matched"], answer["session"]["rebuilt"]) == (expected, None)
                message = answer["choices"][0]["message"]
                assert made(message) == BOTH
                messages += [message, *results(message)]
            server.signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
