"""Functions that a response calls; it always makes the same calls."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI, pydantic_function_tool
from openai.types.responses import Response
from pydantic import BaseModel, ConfigDict

from tests.e2e.responding import body, connect, create, events, read, session
from tests.e2e.serving import MODEL, Server
from tests.scripted import save_scripted_model

TEXT = "Let me see.\n"
ROME = ["<tool_call>\n{", '"name": "weather", "arguments": ', '{"city"', ': "Ro', 'me"}', "}\n</tool_call>"]
OSLO = ["\n<tool_call>", '\n{"name": "wea', 'ther", "argum', 'ents": {"city": "Oslo"', "}}", "\n</tool_", "call>"]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: dict[str, Any] = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}
BOTH = [("weather", '{"city": "Rome"}'), ("weather", '{"city": "Oslo"}')]


class Point(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["a", "b"]
    on: bool


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model: Path = save_scripted_model(tmp_path_factory.mktemp("scripted"), [TEXT, *ROME, *OSLO])
    with Server(model, tmp_path_factory.mktemp("server"), max_output_tokens=100, capacity=4096) as server:
        yield server.wait_until_ready()


@pytest.fixture(scope="module")
def tiny(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """Of a model that would say anything."""
    folder = tmp_path_factory.mktemp("tiny")
    with Server(tiny_model, folder, capacity=4096) as server, connect(server.wait_until_ready()) as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with connect(server) as client:
        yield client


def call(client: OpenAI, what: Any, **changes: Any) -> Response:
    return create(client, what, **{"tools": [TOOL], "max_output_tokens": 100} | changes)


def calls(response: Response) -> list[tuple[str, str]]:
    return [(item.name, item.arguments) for item in response.output if item.type == "function_call"]


def results(response: Response) -> list[dict[str, Any]]:
    made = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": item.call_id, "output": "hot"} for item in made]


def test_calls_are_items_behind_the_text(client: OpenAI) -> None:
    response = call(client, "How is the weather?")
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert response.output_text == TEXT.strip()
    assert calls(response) == BOTH
    assert response.status == "completed"
    assert len({item.id for item in response.output}) == 3
    assert [tool.model_dump(exclude_unset=True) for tool in response.tools] == [TOOL | {"description": None}]
    one = call(client, "How is the weather?", parallel_tool_calls=False)
    assert calls(one) == BOTH[:1]
    none = call(client, "How is the weather?", tool_choice="none")
    assert [item.type for item in none.output] == ["message"]
    short = call(client, "How is the weather?", max_output_tokens=5)
    assert (short.status, short.output[-1].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
    assert calls(short) == [("weather", '{"city": "Ro')]


def test_calls_are_streamed_in_openais_order(server: Server) -> None:
    told = events(server, body(tools=[TOOL], max_output_tokens=100, lookahead={"strategy": "autoregressive"}))
    kinds = [one["type"].removeprefix("response.") for one in told]
    for index in (1, 2):
        own = [one for one in told if one.get("output_index") == index]
        assert own[0]["item"]["arguments"] == ""
        assert own[0]["item"]["call_id"] == own[-1]["item"]["call_id"]
        deltas = [one["delta"] for one in own if one["type"] == "response.function_call_arguments.delta"]
        assert "".join(deltas) == own[-2]["arguments"] == own[-1]["item"]["arguments"] == BOTH[index - 1][1]
        assert [one["type"].removeprefix("response.") for one in own] == [
            "output_item.added", *["function_call_arguments.delta"] * len(deltas), "function_call_arguments.done",
            "output_item.done",
        ]  # fmt: skip
    assert kinds[-1] == "completed"
    assert [one["item"] for one in told if one["type"] == "response.output_item.done"] == told[-1]["response"]["output"]


def test_the_sdk_puts_a_stream_together(tiny: OpenAI) -> None:
    tool: Any = pydantic_function_tool(Point, name="draw")["function"]
    asked: Any = {"model": MODEL, "input": "hi", "tools": [{"type": "function"} | tool], "tool_choice": "required"}
    with tiny.responses.stream(**asked, parallel_tool_calls=False) as stream:
        final = stream.get_final_response()
    (parsed,) = [item.parsed_arguments for item in final.output if item.type == "function_call"]
    Point.model_validate(parsed)


def test_results_go_on_with_calls_in_every_way(client: OpenAI) -> None:
    first = call(client, "How is the weather?", instructions="Be brief.")
    sent_back = [item.model_dump() for item in first.output]
    followed = call(client, results(first), instructions="Be brief.", previous_response_id=first.id)
    assert (session(followed)["id"], session(followed)["matched"]) == (session(first)["id"], "extend")
    assert calls(followed) == BOTH
    user = {"role": "user", "content": "How is the weather?"}
    again = call(client, [user, *sent_back, *results(first)], instructions="Be brief.")
    references = [{"type": "item_reference", "id": item["id"]} for item in sent_back]
    referred = call(client, [user, *references, *results(first)], instructions="Be brief.")
    for same in (again, referred):
        assert session(same)["matched"] == "regenerate"
        assert read(same) == 1
    more = call(client, results(followed), instructions="Be brief.", previous_response_id=followed.id)
    assert read(more) == read(followed) < 200
    other = {"type": "function_call_output", "call_id": "call_other", "output": "hot"}
    with pytest.raises(BadRequestError) as refused:
        call(client, [other], previous_response_id=first.id)
    assert refused.value.param == "input"


def test_an_answer_has_the_format_that_is_asked_for(tiny: OpenAI) -> None:
    parsed = tiny.responses.parse(model=MODEL, input="hi", max_output_tokens=100, text_format=Point)
    assert isinstance(parsed.output_parsed, Point)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    formed = tiny.responses.create(
        model=MODEL, input="hi", max_output_tokens=60, text={"format": {"type": "json_object"}}, stream=False
    )
    assert formed.output_text.startswith("{")


def test_a_call_that_is_asked_for_is_made(tiny: OpenAI) -> None:
    parameters = {**Point.model_json_schema(), "additionalProperties": False}
    tool: Any = {"type": "function", "name": "draw", "parameters": parameters, "strict": True}
    response = tiny.responses.create(
        model=MODEL, input="hi", max_output_tokens=200, tools=[tool], tool_choice="required"
    )
    (item,) = response.output
    assert item.type == "function_call"
    Point.model_validate_json(item.arguments)
