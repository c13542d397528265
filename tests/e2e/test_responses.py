"""The Responses API over real sockets: through OpenAI's SDK in strict mode, and event by event."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.e2e.responding import PATH, body, chat, connect, create, events, read
from tests.e2e.serving import MODEL, Server, receive_until, send, wait_for


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with connect(server) as client:
        yield client


def test_a_response_says_what_a_chat_says(client: OpenAI) -> None:
    response = create(client, "hi", max_output_tokens=24)
    assert response.output_text == chat(client, ("user", "hi"), max_tokens=24)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (21, 24)
    assert (response.status, response.completed_at) == ("incomplete", None)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    whole = create(client, "Hello there", max_output_tokens=50)
    assert whole.output_text == chat(client, ("user", "Hello there"), max_tokens=50)
    assert (whole.status, whole.incomplete_details, whole.error) == ("completed", None, None)
    (message,) = whole.output
    assert message.type == "message"
    assert (message.role, message.status) == ("assistant", "completed")
    assert whole.id.startswith("resp_")
    assert message.id.startswith("msg_")


def test_seeds_instructions_and_our_own_parameters_are_those_of_chats(client: OpenAI) -> None:
    own = {"seed": 7, "top_k": 40, "lookahead": {"strategy": "autoregressive"}, "stop": ["\u0001"]}
    response = create(
        client, "hi", instructions="Be odd.", temperature=0.9, top_p=0.9, metadata={"a": "b"}, extra_body=own
    )
    messages = ("system", "Be odd."), ("user", "hi")
    assert response.output_text == chat(client, *messages, temperature=0.9, top_p=0.9, extra_body=own)
    assert (response.instructions, response.temperature, response.metadata) == ("Be odd.", 0.9, {"a": "b"})


def test_a_stream_tells_the_same_in_openais_order(server: Server, client: OpenAI) -> None:
    whole = create(client, "Hello there", max_output_tokens=50)
    told = events(server, body("Hello there", max_output_tokens=50))
    kinds = [one["type"].removeprefix("response.") for one in told]
    num_deltas = kinds.count("output_text.delta")
    assert num_deltas > 1
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * num_deltas,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    created, done = told[0]["response"], told[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert "".join(one["delta"] for one in told if "delta" in one) == whole.output_text
    assert told[-4]["text"] == told[-3]["part"]["text"] == whole.output_text
    assert told[-2]["item"] == done["output"][0]
    assert told[2]["item"] == done["output"][0] | {"status": "in_progress", "content": []}
    assert {one["item_id"] for one in told if "item_id" in one} == {told[2]["item"]["id"]}
    assert {one["response"]["id"] for one in told if "response" in one} == {done["id"]}
    assert done["usage"]["output_tokens"] == 12


def test_the_sdk_streams(client: OpenAI) -> None:
    """Both of its ways; not all of its helper's events are strict about what they hold."""
    asked: Any = {"model": MODEL, "input": "hi", "temperature": 0, "max_output_tokens": 24}
    text = create(client, "hi", max_output_tokens=24).output_text
    stream = client.responses.create(**asked, stream=True)
    assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == text
    with client.responses.stream(**asked | {"input": "Hello there", "max_output_tokens": 50}) as helped:
        final = helped.get_final_response()
    assert final.output_text == create(client, "Hello there", max_output_tokens=50).output_text


def test_logprobs_are_those_of_a_chat(server: Server, client: OpenAI) -> None:
    response = create(client, "hi", include=["message.output_text.logprobs"], top_logprobs=2)
    told: Any = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0, max_tokens=8, logprobs=True,
        top_logprobs=2,
    )  # fmt: skip
    (message,) = response.model_dump()["output"]
    expected = told.choices[0].model_dump()["logprobs"]["content"]
    assert message["content"][0]["logprobs"] == expected
    streamed = events(server, body(include=["message.output_text.logprobs"], top_logprobs=2))
    deltas = [entry for one in streamed if "delta" in one for entry in one["logprobs"]]
    assert deltas == expected
    plain = events(server, body())
    assert all(one["logprobs"] == [] for one in plain if "delta" in one)


def test_input_comes_in_many_shapes(client: OpenAI) -> None:
    first = create(client, "one")
    expected = chat(client, ("user", "one"), ("assistant", first.output_text), ("user", "two"))
    (sent_back,) = first.model_dump()["output"]
    new = {"role": "user", "content": "two"}
    parts = [{"type": "input_text", "text": part} for part in ("o", "ne")]
    for items in (
        [{"role": "user", "content": "one"}, {"role": "assistant", "content": first.output_text}, new],
        [
            {"type": "message", "role": "user", "content": parts},
            sent_back,
            new,
        ],
        [{"role": "user", "content": "one"}, {"type": "item_reference", "id": sent_back["id"]}, new],
        [{"role": "user", "content": "one"}, {"type": "reasoning", "id": "rs_1", "summary": []}, sent_back, new],
    ):  # fmt: skip
        response = create(client, items)
        assert response.output_text == expected
        assert read(response) < 40
    developer = create(client, [{"role": "developer", "content": "Be odd."}, new])
    assert developer.output_text == create(client, "two", instructions="Be odd.").output_text


def test_a_failure_in_the_middle_is_told_twice(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path) as server, server.wait_until_ready().connect() as connection:
        send(connection, body("never ends", max_output_tokens=1_000_000, stream=True), PATH)
        received = receive_until(connection, b"output_text.delta")
        server.worker.kill()
        received += receive_until(connection, b"0\r\n\r\n")
        (error,) = [
            json.loads(line[6:]) for line in received.decode().split("\n") if line.startswith('data: {"type":"error"')
        ]
        failed = json.loads(received.decode().partition("event: response.failed\ndata: ")[2].partition("\n")[0])
        assert failed["sequence_number"] == error["sequence_number"] + 1
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}
        assert Response.model_validate(failed["response"]).output_text != ""
        wait_for(lambda: server.health() == 200)
