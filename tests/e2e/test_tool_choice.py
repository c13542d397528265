"""Calls that are asked for: right ones, whatever the model. This one is random, and knows no language."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.e2e.serving import MODEL, Server

UNITS = ["celsius", "kelvin"]
PLACE = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
}
PARAMETERS = {
    "type": "object",
    "properties": {"unit": {"enum": UNITS}, "place": {"$ref": "#/$defs/place"}},
    "required": ["unit", "place"],
    "additionalProperties": False,
    "$defs": {"place": PLACE | {"additionalProperties": False}},
}


def tool(name: str, *, strict: bool = True) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": strict}}


TOOLS = [tool("weather"), tool("climate", strict=False)]
NAMED = {"type": "function", "function": {"name": "climate"}}


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tiny_model, tmp_path_factory.mktemp("server"), capacity=4096, max_output_tokens=400) as server:
        yield server.wait_until_ready()


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client:
        yield client


def body(content: str, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "tools": TOOLS, "temperature": 0} | changes


def check(message: dict[str, Any], names: set[str]) -> None:
    """That its calls, one at least, are of these functions, and right."""
    assert message["content"] is None
    assert message["tool_calls"]
    for call in message["tool_calls"]:
        assert call["function"]["name"] in names
        arguments = json.loads(call["function"]["arguments"])
        assert list(arguments) == ["unit", "place"]
        assert arguments["unit"] in UNITS
        assert list(arguments["place"]) == ["days"]
        assert 1 <= arguments["place"]["days"] <= 9


@pytest.mark.parametrize("temperature", [0, 2])
@pytest.mark.parametrize("lookahead", [{"strategy": "autoregressive"}, None])
def test_required_calls_are_right_ones(server: Server, temperature: float, lookahead: Any) -> None:
    for content in ("a", "b"):
        changes = {"temperature": temperature, "seed": 1, "lookahead": lookahead, "parallel_tool_calls": False}
        choice = server.post(body(content, tool_choice="required", **changes)).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        check(choice["message"], {"weather", "climate"})
        assert len(choice["message"]["tool_calls"]) == 1


def test_one_function_is_asked_for(server: Server) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    for choice in (NAMED, allowed):
        answer = server.post(body("hi", tool_choice=choice, temperature=1, seed=2)).json()["choices"][0]
        check(answer["message"], {"climate"})
        assert answer["finish_reason"] == "tool_calls" or len(answer["message"]["tool_calls"]) > 1


def test_a_stream_is_the_same(client: OpenAI, server: Server) -> None:
    asked = body("hi", tool_choice="required", parallel_tool_calls=False)
    whole = server.post(asked).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    name, arguments = "", ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            name, arguments = name + (call.function.name or ""), arguments + (call.function.arguments or "")
    assert {"name": name, "arguments": arguments} == whole


class Forecast(BaseModel):
    """Of the next days."""

    unit: Literal["celsius", "kelvin"]
    days: Literal[1, 2, 3]


def test_the_sdk_parses_calls_streamed_or_not(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "sdk"}], "temperature": 0}
    asked |= {"tools": [pydantic_function_tool(Forecast, name="forecast")], "parallel_tool_calls": False}
    whole = client.chat.completions.parse(**asked, tool_choice="required").choices[0].message.tool_calls
    assert whole is not None
    assert isinstance(whole[0].function.parsed_arguments, Forecast)
    with client.chat.completions.stream(**asked, tool_choice="required") as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert streamed is not None
    assert streamed[0].function.parsed_arguments == whole[0].function.parsed_arguments


def test_a_conversation_of_asked_calls_goes_on(server: Server) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What goes on?"}]
    for turn in range(4):
        answer = server.post(body("", messages=messages, tool_choice="required", parallel_tool_calls=False)).json()
        assert answer["session"]["matched"] == ("extend" if turn else "new")
        message = answer["choices"][0]["message"]
        check(message, {"weather", "climate"})
        messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}]


def test_what_cannot_be_enforced_is_refused_before_anything_is_generated(server: Server) -> None:
    odd = {"type": "object", "properties": {}, "unevaluatedProperties": False}
    for stream in (False, True):
        for parameters, strict in ((odd, True), ({"type": "object", "properties": {"a": {"type": "x"}}}, False)):
            function = {"name": "f", "parameters": parameters, "strict": strict}
            tools = [{"type": "function", "function": function}]
            refused = server.post(body("hi", tools=tools, tool_choice="required", stream=stream))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    function = {"name": "f", "parameters": odd}
    tools = [{"type": "function", "function": function}]
    assert server.post(body("hi", tools=tools, tool_choice="required", max_tokens=40)).status_code == 200
