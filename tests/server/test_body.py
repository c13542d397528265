"""Bad bodies: each is refused with the parameter's name and without its contents."""

import asyncio
import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from server import body
from server.errors import ApiError
from server.format_schemas import JsonSchemaFormat
from server.schemas import ChatRequest
from server.tools.definitions import Choice, Tools

GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def calling(**changes: Any) -> str:
    """Messages with a call."""
    return json.dumps([{"role": "assistant", "content": None, "tool_calls": [CALL | changes]}])


def tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}} | changes}


TOOL = tool()
NO_SCHEMAS: list[Any] = [5, [], {"type": "string"}, {"type": ["object"]}, {"a": float("nan")}, {"a": "\ud800"}]
TOOL_NAMED = {"type": "function", "function": {"name": "f"}}


def parse(**changes: Any) -> ChatRequest:
    return body.parse(json.dumps(GOOD | changes).encode(), ChatRequest)


def refusal(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as refused:
        body.parse(raw, ChatRequest)
    assert refused.value.status == 400
    assert refused.value.body.type == "invalid_request_error"
    json.loads(refused.value.encode())
    return refused.value


def schema(fields: str) -> str:
    """A response format."""
    return f'{{"type": "json_schema", "json_schema": {{{fields}}}}}'


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe\xff",
        b'{"model": "m", "messages": [}',
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    assert refusal(raw).body.param is None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", ["5", "[]", r'"\ud800"', "null"]),
        ("messages", ["[]", "{}", '"hi"', "5", "null"]),
        ("messages[0]", ["[5]", '["hi"]', "[[]]", "[null]"]),
        (
            "messages[0].role",
            ['[{"content": "hi"}]', '[{"role": "function", "content": "x"}]', '[{"role": 1, "content": ""}]'],
        ),
        (
            "messages[0].content",
            [
                '[{"role": "user"}]',
                '[{"role": "user", "content": null}]',
                '[{"role": "user", "content": 5}]',
                '[{"role": "user", "content": []}]',
                r'[{"role": "user", "content": "\udc00"}]',
            ],
        ),
        (
            "messages[0].content[0].type",
            ['[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]'],
        ),
        ("messages[0].content[0].text", ['[{"role": "user", "content": [{"type": "text"}]}]']),
        ("messages[0].tool_calls", ['[{"role": "assistant", "content": "x", "tool_calls": []}]']),
        ("stream", ["1", '"true"', "[]"]),
        ("stream_options", ["5", "[]"]),
        ("stream_options.include_usage", ['{"include_usage": 1}']),
        ("max_tokens", ["-1", "0", "true", '"5"', "5.0", "1e3", "NaN", "Infinity"]),
        ("max_completion_tokens", ["-1", "0", "true", '"5"', "1.5"]),
        ("temperature", ["-0.1", "2.1", "true", '"1"', "NaN", "-Infinity", "1e999", "9" * 400]),
        ("top_p", ["-0.1", "1.1", "false", "NaN"]),
        ("top_k", ["-1", "1.5", "true", "99999999999999"]),
        ("min_p", ["-0.1", "1.1", '"0"']),
        ("seed", ["9" * 400, "18446744073709551616", "1.0", "true", '"1"']),
        ("stop", ["5", "{}", '""', json.dumps(["x"] * 17)]),
        ("stop[1]", ['["a", ""]', '["a", 5]', r'["a", "\ud800"]']),
        ("user", ["5", r'"\ud800"']),
        ("metadata", ["5", "[]"]),
        ("metadata.a", ['{"a": 1}']),
        ("n", ["129", "0", "true", "1.0"]),
        ("store", ["5"]),
        ("session_id", ['""', '"a b"', "5", '"' + "x" * 129 + '"']),
        ("session_mode", ['"all"']),
        ("priority", ["1.5", '"high"', "2147483648"]),
        ("logprobs", ["1", "5"]),
        ("frequency_penalty", ["2.1", "-2.1", '"1"', "true", "NaN"]),
        ("presence_penalty", ["2.1", "-2.1", '"1"', "true", "1e999"]),
        ("repetition_penalty", ["0", "-1", "2.1", "1e-300", '"1"', "true", "NaN"]),
        ("min_tokens", ["-1", "1.0", '"1"', "true"]),
        ("logit_bias", ["5", "[]", "[[1, 2]]", json.dumps({str(token): 1 for token in range(301)})]),
        ("logit_bias.5", ['{"5": 101}', '{"5": -100.5}', '{"5": "1"}', '{"5": true}', '{"5": null}', '{"5": NaN}']),
        ("logit_bias.x", ['{"x": 1}', '{"5": 1, "x": 1}']),
        ("logit_bias.-1", ['{"-1": 1}']),
        ("logit_bias.05", ['{"5": 1, "05": 2}']),
        ("logit_bias.12345678901", ['{"12345678901": 1}']),
        ("prediction", ["5", '"text"']),
        ("prediction.type", ['{"content": "x"}', '{"type": "text", "content": "x"}']),
        (
            "prediction.content",
            ['{"type": "content"}', '{"type": "content", "content": []}', r'{"type": "content", "content": 5}'],
        ),
        ("prediction.content[0].text", [r'{"type": "content", "content": [{"type": "text", "text": "\ud800"}]}']),
        ("lookahead", ["5", '"auto"']),
        ("lookahead.strategy", ['{"strategy": "fast"}', '{"strategy": 1}']),
        ("lookahead.window", ['{"window": "5"}', '{"window": 5.0}', '{"window": true}']),
        ("lookahead.sources", ['{"sources": []}']),
        ("messages[0].role", ['[{"role": [], "content": "x"}]', '[{"role": {}, "content": "x"}]']),
        ("messages[0].tool_calls", [json.dumps([{"role": "user", "content": "x", "tool_calls": [CALL]}])]),
        ("messages[0].content", ['[{"role": "assistant"}]', '[{"role": "tool", "tool_call_id": "1"}]']),
        ("messages[0].tool_call_id", ['[{"role": "tool", "content": "x"}]']),
        ("messages[0].tool_call_id", ['[{"role": "user", "content": "x", "tool_call_id": "1"}]']),
        ("messages[0].tool_calls[0].id", [calling(id=None), calling(id=""), calling(id=5)]),
        ("messages[0].tool_calls[0].type", [calling(type="custom"), calling(type=None)]),
        ("messages[0].tool_calls[0].function", [calling(function=None), calling(function="f")]),
        ("messages[0].tool_calls[0].function.arguments", [calling(function={"name": "f", "arguments": {}})]),
        ("tools", ["[]", "{}", json.dumps([TOOL, TOOL]), json.dumps([tool(name=f"f{i}") for i in range(129)])]),
        ("tools[0].type", ['[{"type": "custom"}]', "[{}]"]),
        ("tools[0].function", ['[{"type": "function"}]']),
        (
            "tools[0].function.name",
            [json.dumps([tool(name=name)]) for name in ("", "a b", "x" * 65, "\u00e9", 5, "f\n")],
        ),
        ("tools[0].function.description", [json.dumps([tool(description=5)])]),
        ("tools[0].function.strict", [json.dumps([tool(strict="yes")])]),
        (
            "tools[0].function.parameters",
            [json.dumps([tool(parameters=schema)]) for schema in NO_SCHEMAS]
            + [json.dumps([tool(parameters={"a": "x"})]).replace('"x"', "[" * 200 + "]" * 200)],
        ),
        ("tool_choice", ["5", '"any"', "[]"]),
        ("tool_choice.type", ['{"type": "custom"}', "{}"]),
        ("tool_choice.function", ['{"type": "function"}']),
        ("tool_choice.function.name", ['{"type": "function", "function": {"name": "a b"}}']),
        (
            "tool_choice.allowed_tools.mode",
            ['{"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}'],
        ),
        (
            "tool_choice.allowed_tools.tools",
            ['{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}'],
        ),
        ("parallel_tool_calls", ["5", '"yes"']),
        ("top_logprobs", ["-1", "21", "true"]),
        ("response_format", ["5", '"json_object"', "{}", '{"type": "xml"}', '{"type": ["text"]}']),
        ("response_format.schema", ['{"type": "json_object", "schema": {}}']),
        ("response_format.json_schema", ['{"type": "json_schema"}', '{"type": "json_schema", "json_schema": 5}']),
        ("response_format.json_schema.name", [schema('"schema": {}'), schema('"schema": {}, "name": "a b"')]),
        ("response_format.json_schema.schema", [schema('"name": "a"'), schema('"name": "a", "schema": []')]),
        ("response_format.json_schema.strict", [schema('"name": "a", "schema": {}, "strict": 1')]),
        ("response_format.json_schema.other", [schema('"name": "a", "schema": {}, "other": 1')]),
        ("no_such_thing", ["1"]),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, values: list[str]) -> None:
    for value in values:
        key = re.split(r"[\[.]", name)[0]
        rest = {other: content for other, content in GOOD.items() if other != key}
        raw = json.dumps(rest)[:-1] + f', "{key}": {value}}}'
        assert refusal(raw.encode()).body.param == name, value


def test_a_refusal_repeats_no_contents() -> None:
    raw = json.dumps(GOOD | {"messages": [{"role": "secret-1", "content": {"secret-2": ["secret-3"]}}]})
    assert "secret" not in refusal(raw.encode()).body.message


def test_a_strange_name_is_told_without_harm() -> None:
    assert refusal(json.dumps(GOOD | {"x" * 1000: 1}).encode()).body.param == "x" * 100
    assert refusal(rb'{"model": "m", "messages": [{"role": "user", "content": "hi", "\ud800": 1}]}').body.message


def test_null_is_absent() -> None:
    assert parse(**dict.fromkeys(set(ChatRequest.model_fields) - set(GOOD))) == parse()
    message = {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None, "name": None}
    assert parse(messages=[message]).messages[0].plain() == {"role": "assistant", "content": "hi"}


def test_calls_and_their_results_are_kept_and_nothing_else_of_them() -> None:
    function = CALL["function"] | {"parsed_arguments": {}}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL | {"index": 0, "function": function}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]}
    messages = [message.plain() for message in parse(messages=[called, result]).messages]
    assert messages[0] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert messages[1] == {"role": "tool", "tool_call_id": "call_1", "content": "42"}


def test_tools_and_choices() -> None:
    named, allowed = {"type": "function", "function": {"name": "f"}}, {"mode": "required", "tools": [TOOL_NAMED]}
    assert parse(tools=[TOOL]).choice == Choice("auto")
    assert parse(tools=[TOOL], parallel_tool_calls=False, tool_choice="none").choice == Choice("none", parallel=False)
    assert parse(tools=[TOOL], tool_choice=named).choice == Choice("required", frozenset({"f"}), parallel=False)
    choice = parse(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).choice
    assert choice == Choice("required", frozenset({"f"}))
    bare = parse(tools=[{"type": "function", "function": {"name": "f"}}, tool(name="g", strict=True)]).offered
    assert bare.names == {"f", "g"}
    assert Tools.decode(bare.encoded).encoded == bare.encoded
    assert bare.shown[0]["function"] == {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert not Tools.decode(b"")
    assert Tools().encoded == b""


def test_what_asks_for_nothing_is_taken() -> None:
    parse(n=1, store=False, logprobs=False, response_format={"type": "text"})
    parse(frequency_penalty=0, presence_penalty=0.0, repetition_penalty=1, logit_bias={}, min_tokens=0, lookahead={})
    parse(user="u", metadata={"a": "b"})


def test_a_schema_is_taken_as_it_is() -> None:
    asked = parse(
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": None}, "strict": None}}
    )
    assert isinstance(asked.response_format, JsonSchemaFormat)
    assert asked.response_format.json_schema.body == {"const": None}


def test_text_parts_are_joined_and_developers_speak_as_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = parse(messages=[{"role": "developer", "content": parts}]).messages[0]
    assert message.plain() == {"role": "system", "content": "ab"}


def test_a_prediction_is_a_string_or_parts_that_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content in ("ab", parts):
        prediction = parse(prediction={"type": "content", "content": content}).prediction
        assert prediction is not None
        assert prediction.text == "ab"


def test_the_newer_name_of_the_limit_wins() -> None:
    assert parse(max_tokens=3).asked_tokens == 3
    assert parse(max_tokens=3, max_completion_tokens=5).asked_tokens == 5


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*ChatRequest.model_fields, "x", "\ud800"]), anything))
def test_any_object_is_taken_or_refused_in_the_envelope(data: dict[str, Any]) -> None:
    raw = json.dumps(data).encode()
    with contextlib.suppress(ApiError):
        body.parse(raw, ChatRequest)
        return
    refusal(raw)


def test_a_client_that_stops_sending_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SILENCE_SECONDS", 0.05)

    async def run() -> ApiError:
        messages = [{"type": "http.request", "body": b'{"model"', "more_body": True}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.sleep(60)
            return messages.pop()

        headers = [(b"content-type", b"application/json")]
        http = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        with pytest.raises(ApiError) as refused:
            await body.read(http, 1000)
        return refused.value

    refused = asyncio.run(run())
    assert refused.status == 408
    assert refused.body.code == "request_timeout"
