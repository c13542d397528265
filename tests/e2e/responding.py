"""Responses as tests ask for them, and chats to compare them with."""

import json
from typing import Any

from openai import OpenAI
from openai.types.responses import Response

from tests.e2e.serving import MODEL, Server

PATH = "/v1/responses"


def connect(server: Server, key: str = "none") -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, _strict_response_validation=True)


def create(client: OpenAI, what: Any, **changes: Any) -> Response:
    asked: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 8} | changes
    response = client.responses.create(input=what, **asked)
    assert isinstance(response, Response)
    return response


def chat(client: OpenAI, *messages: tuple[str, str], **changes: Any) -> str:
    """What a chat answers to the same."""
    told: Any = [{"role": role, "content": text} for role, text in messages]
    asked: Any = {"model": MODEL, "temperature": 0, "max_tokens": 8} | changes
    return str(client.chat.completions.create(messages=told, **asked).choices[0].message.content)


def beside(client: OpenAI, name: str, *words: str) -> str:
    """The last answer of a chat with these words, in a session of that name."""
    text = ""
    for number, word in enumerate(words):
        mode = {"session_mode": "append"} if number else {}
        text = chat(client, ("user", word), extra_body={"session_id": name} | mode)
    return text


def read(response: Response) -> int:
    """Tokens that were forwarded for the prompt."""
    assert response.usage is not None
    assert response.usage.input_tokens + response.usage.output_tokens == response.usage.total_tokens
    written = response.usage.input_tokens - response.usage.input_tokens_details.cached_tokens
    assert response.usage.input_tokens_details.cache_write_tokens == written
    return written


def session(response: Response) -> dict[str, Any]:
    told: dict[str, Any] = response.model_dump()["session"]
    return told


def events(server: Server, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Each with the name of its event checked."""
    response = server.post(asked | {"stream": True}, PATH)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    told = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        kind, _, data = block.partition("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {told[-1]['type']}"
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    return told


def body(what: Any = "hi", **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": what, "temperature": 0, "max_output_tokens": 8} | changes
