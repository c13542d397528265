"""Tokens without an answer: what is counted is what a request is charged."""

import json
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.e2e.serving import CHAT, Server, ask, wait_for
from tests.tiny import CHAT_TEMPLATE, build_tokenizer

COUNT = f"{CHAT}/input_tokens"
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "héllo 🫠"}]


def post(server: Server, path: str, **body: Any) -> Any:
    response = server.post(body, path)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("text", ["", "hi", "héllo 🫠", "<|im_start|>user\nhi<|im_end|>", "a\0b"])
def test_a_prompt_there_and_back(server: Server, text: str) -> None:
    told = post(server, "/tokenize", model="tiny", prompt=text)
    assert told["tokens"] == build_tokenizer()(text)["input_ids"]
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == 1_000_000
    assert told["token_strs"] is None
    assert post(server, "/detokenize", model="tiny", tokens=told["tokens"]) == {"prompt": text}


def test_messages_are_rendered_as_chats_are(server: Server) -> None:
    tokenizer = build_tokenizer()
    for opens in (True, False):
        text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=opens)
        told = post(server, "/tokenize", messages=MESSAGES, add_generation_prompt=opens, return_token_strs=True)
        assert told["tokens"] == tokenizer(text)["input_ids"]
        assert told["token_strs"] == tokenizer.convert_ids_to_tokens(told["tokens"])
    assert "add_generation_prompt" in CHAT_TEMPLATE


def test_what_is_counted_is_what_a_chat_is_charged(server: Server) -> None:
    changes: dict[str, Any]
    for changes in ({}, {"stream": True}, {"max_tokens": 3, "n": 2}):
        body = ask(**changes) | {"messages": MESSAGES}
        counted = post(server, COUNT, **body)
        assert counted["object"] == "chat.completion.input_tokens"
        usage = server.post({**body, "stream": False, "store": False}).json()["usage"]
        assert (
            counted["input_tokens"] == usage["prompt_tokens"] == post(server, "/tokenize", messages=MESSAGES)["count"]
        )
    begun = [*MESSAGES, {"role": "assistant", "content": "It is"}]
    body = ask(continue_final_message=True) | {"messages": begun}
    assert post(server, COUNT, **body)["input_tokens"] == server.post(body).json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x", "name": "joe"}]}, "messages[0].name"),
        ("/tokenize", {"prompt": "x", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [259]}, "tokens"),
        (COUNT, {"model": "tiny"}, "messages"),
        (COUNT, ask(min_tokens=9), "min_tokens"),
        (COUNT, ask(session_mode="append"), "session_mode"),
    ],
)
def test_what_is_wrong_is_named(server: Server, path: str, body: dict[str, Any], param: str | None) -> None:
    response = server.post(body, path)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_another_model_is_a_404(server: Server) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": []}), (COUNT, ask())):
        assert server.post({**body, "model": "gpt"}, path).status_code == 404


def test_many_long_texts_make_no_chat_wait_and_are_refused_at_last(server: Server) -> None:
    """Of one place in the queue, that is, one that works and one that waits."""
    body = json.dumps({"prompt": "long " * 50_000, "return_token_strs": True}).encode()
    request = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(12)]
        for connection in connections:
            connection.sendall(request + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert server.post(ask()).status_code == 200
        statuses = [int(connection.recv(4096).split()[1]) for connection in connections]
    assert set(statuses) == {200, 429}
    wait_for(lambda: httpx.post(f"{server.url}/tokenize", json={"prompt": "x"}).status_code == 200)
