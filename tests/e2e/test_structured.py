"""Answers in JSON over real sockets, of a model that knows none: with and without lookahead they are the same."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.e2e.serving import MODEL, Server, ask
from tests.schemas import random_schema


class Colour(BaseModel):
    name: Literal["red", "green", "blue"]
    shades: list[bool] = Field(min_length=1, max_length=2)


class Painting(BaseModel):
    title: str = Field(max_length=12)
    year: int = Field(ge=1500, le=2000)
    colour: Colour
    copy_of: "Painting | None"


def formatted(schema: dict[str, Any], **changes: Any) -> dict[str, Any]:
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return ask(response_format=shape, temperature=1, max_tokens=600, **changes)


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True) as client:
        yield client


def test_the_sdk_parses_an_answer_into_its_model(client: OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "Paint"}], response_format=Painting, seed=seed
        )
        assert answer.choices[0].finish_reason == "stop"
        assert isinstance(answer.choices[0].message.parsed, Painting)


@pytest.mark.parametrize("seed", range(10))
def test_answers_validate_and_lookahead_changes_none(server: Server, seed: int) -> None:
    schema = random_schema(1000 + seed)
    answers = [
        server.post(formatted(schema, seed=seed, n=2, lookahead={"strategy": strategy})).json()
        for strategy in ("auto", "autoregressive")
    ]
    texts = [[choice["message"]["content"] for choice in answer["choices"]] for answer in answers]
    assert texts[0] == texts[1]
    for choice in answers[0]["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


def test_any_object(client: OpenAI) -> None:
    """A stream of it is cut where its length ends; what came is a beginning of the same answer."""
    texts = []
    for limit in (20, 400):
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"},
            seed=3, max_tokens=limit, stream=True,
        )  # fmt: skip
        chunks = list(stream)
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
        reason = chunks[-1].choices[0].finish_reason
        assert reason == "length" or isinstance(json.loads(texts[-1]), dict)
    assert texts[0][0] == "{"
    assert texts[1].startswith(texts[0].rstrip("\ufffd"))


def test_a_stop_string_ends_an_answer_all_the_same(server: Server) -> None:
    schema = {"const": {"first": 1, "second": 2}}
    choice = server.post(formatted(schema, stop=["second"])).json()["choices"][0]
    assert choice["message"]["content"] == '{"first": 1, "'
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_followed_is_refused(server: Server, stream: bool) -> None:
    response = server.post(formatted({"type": "object", "not": {}}, stream=stream))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "response_format.json_schema.schema"
    assert "not" in error["message"]
    deep: Any = {"type": "integer"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    assert server.post(formatted(deep, stream=stream)).status_code == 400
    assert server.post(formatted({"type": "integer", "maximum": 9}, stream=stream)).status_code == 200
