"""What is wrong with a request is told in the envelope, by name, and the next request works."""

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.serving import CHAT, Server, ask, receive_until, send

JSON = {"Content-Type": "application/json"}
ASKED = '{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], '


@pytest.fixture
def pooled(server: Server) -> Iterator[httpx.Client]:
    """One connection for all requests of a test, and a good one at the end."""
    limits = httpx.Limits(max_connections=1)
    with httpx.Client(base_url=server.url, timeout=60, limits=limits) as client:
        yield client
        assert client.post(CHAT, json=ask()).status_code == 200


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ("{", None),
        ("[]", None),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "model"),
        ('{"model": "tiny", "messages": []}', "messages"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": 5}]}', "messages[0].content"),
        (r'{"model": "tiny", "messages": [{"role": "user", "content": "\ud800"}]}', "messages[0].content"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": NaN}', "max_tokens"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": -1}', "max_tokens"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9999999}', "max_tokens"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": NaN}', "temperature"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": "1"}', "temperature"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": []}', "tools"),
        ('{"model": "tiny", "messages": [{"role": "user", "content": "hi", "name": "joe"}]}', "messages[0].name"),
        ('{"model": "tiny", "messages": [{"role": ["user"], "content": "hi"}]}', "messages[0].role"),
        (ASKED + '"presence_penalty": 3}', "presence_penalty"),
        (ASKED + '"frequency_penalty": -3}', "frequency_penalty"),
        (ASKED + '"repetition_penalty": 0}', "repetition_penalty"),
        (ASKED + '"logit_bias": {"259": 1}}', "logit_bias"),
        (ASKED + '"logit_bias": {"9999999999": 1}}', "logit_bias"),
        (ASKED + '"logit_bias": {"5": 101}}', "logit_bias.5"),
        (ASKED + '"min_tokens": -1}', "min_tokens"),
        (ASKED + '"min_tokens": 9, "max_tokens": 8}', "min_tokens"),
        (ASKED + '"min_tokens": 1000001}', "min_tokens"),
        (ASKED + '"prediction": "text"}', "prediction"),
        (ASKED + '"prediction": {"type": "content"}}', "prediction.content"),
        (ASKED + '"lookahead": {"strategy": "fast"}}', "lookahead.strategy"),
        (ASKED + '"lookahead": {"window": 5}}', "lookahead.window"),
        (ASKED + '"lookahead": {"strategy": "jacobi", "ngram": 3}}', "lookahead.ngram"),
        (ASKED + '"lookahead": {"strategy": "lookahead", "guesses": -1}}', "lookahead.guesses"),
        (ASKED + '"lookahead": {"strategy": "lookahead", "ngram": 1000000000000}}', "lookahead.ngram"),
        (ASKED + '"lookahead": {"strategy": "lookahead", "window": 100}}', "lookahead.window"),
    ],
)
def test_a_bad_body_is_a_400_also_for_a_stream(pooled: httpx.Client, raw: str, param: str | None, stream: bool) -> None:
    if stream and raw.endswith("}"):
        raw = raw[:-1] + ', "stream": true}'
    response = pooled.post(CHAT, content=raw, headers=JSON)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_stream_options_need_a_stream(pooled: httpx.Client) -> None:
    response = pooled.post(CHAT, json=ask(stream_options={"include_usage": True}))
    assert (response.status_code, error_of(response)["param"]) == (400, "stream_options")


def test_an_unknown_model_is_a_404(pooled: httpx.Client) -> None:
    response = pooled.post(CHAT, json=ask(model="gpt-4"))
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


def test_a_pinned_block_over_its_limit_is_a_400(pooled: httpx.Client) -> None:
    messages = [{"role": "system", "content": "x" * 600}, {"role": "user", "content": "hi"}]
    response = pooled.post(CHAT, json=ask(messages=messages))
    assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")


def test_unknown_routes_and_wrong_methods(pooled: httpx.Client) -> None:
    for method, path, status in [
        ("GET", "/", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ]:
        response = pooled.request(method, path)
        assert response.status_code == status, path
        error_of(response)
    assert pooled.get(CHAT).headers["allow"] == "POST"


def test_other_content_types_are_a_415(pooled: httpx.Client) -> None:
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {}):
        response = pooled.post(CHAT, content=json.dumps(ask()), headers=headers)
        assert response.status_code == 415
        error_of(response)
    assert pooled.post(CHAT, content=json.dumps(ask()), headers={"Content-Type": "Application/JSON; charset=utf-8"})


def test_a_body_too_large_is_a_413_announced_or_not(server: Server, pooled: httpx.Client) -> None:
    raw = json.dumps(ask("x" * 400_000)).encode()
    response = httpx.post(server.url + CHAT, content=raw, headers=JSON)
    assert response.status_code == 413
    error_of(response)
    pieces = (raw[at : at + 10_000] for at in range(0, len(raw), 10_000))
    assert httpx.post(server.url + CHAT, content=pieces, headers=JSON).status_code == 413


def test_half_a_body_then_silence_or_death_harms_nobody(server: Server) -> None:
    with server.connect() as silent, server.connect() as dying:
        for connection in (silent, dying):
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            connection.sendall(b'Content-Length: 1000\r\n\r\n{"model":')
        dying.close()
        assert server.post(ask()).status_code == 200


def test_mutated_bodies_never_break_the_server(server: Server) -> None:
    numbers = random.Random(0)
    seed = json.dumps(ask(stop=["x"], seed=5, top_p=0.5, max_tokens=2, user="u", stream=False)).encode()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(300):
            body = bytearray(seed)
            for _ in range(numbers.randrange(1, 4)):
                at = numbers.randrange(len(body))
                kind = numbers.randrange(3)
                if kind == 0:
                    body[at] = numbers.randrange(256)
                elif kind == 1:
                    del body[at : at + numbers.randrange(1, 9)]
                else:
                    body[at:at] = numbers.choice([b"null", b"-1", b"1e999", b'"', b"[", b"{}", b"\\ud800", b"true"])
            response = client.post(CHAT, content=bytes(body), headers=JSON)
            assert response.status_code in (200, 400, 404), body
            if response.status_code != 200:
                error_of(response)


def test_nonsense_instead_of_http_is_answered_or_dropped(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00nonsense\r\n\r\n")
        connection.recv(1000)
    with server.connect() as connection:
        send(connection, ask())
        assert b"200 OK" in receive_until(connection, b'"kept":true}}')


def test_an_offer_to_upgrade_the_connection_loses_no_body(server: Server) -> None:
    answer = server.post(ask(), Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", **{"HTTP2-Settings": "AAMAAABk"})
    assert answer.status_code == 200
