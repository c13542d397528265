"""A client that goes away, in whatever phase, leaves its place to the next one at once."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.serving import CHAT, MODEL, Server, ask, is_silent, long, receive_until, send, wait_for


@pytest.fixture(autouse=True)
def nothing_is_lost(server: Server) -> Iterator[None]:
    """Before and after, the server takes two streams and one request that waits, and refuses the next one."""
    check_capacity(server)
    yield
    check_capacity(server)


def check_capacity(server: Server) -> None:
    with server.stream(), server.stream(), server.queued(ask()):
        assert server.post(ask()).status_code == 429


def assert_served_soon(server: Server) -> None:
    """Far sooner than an abandoned request would end by itself."""
    wait_for(lambda: server.post(ask()).status_code == 200, patience=20)


def test_in_the_middle_of_a_stream(server: Server) -> None:
    for _ in range(5):
        with server.stream(), server.stream():
            pass
    assert_served_soon(server)


def test_while_a_whole_answer_is_made(server: Server) -> None:
    for _ in range(5):
        with server.queued(ask(max_tokens=1_000_000)), server.queued(ask(max_tokens=1_000_000)):
            pass
    assert_served_soon(server)


def test_in_the_queue(server: Server) -> None:
    with ExitStack() as streams:
        streams.enter_context(server.stream())
        streams.enter_context(server.stream())
        for stream in (False, True):
            with server.queued(ask(stream=stream)):
                pass
        with server.queued(ask()) as waiting:
            streams.close()
            assert b"200 OK" in receive_until(waiting, b'"kept":true}}')


def test_while_the_prompt_is_read(server: Server) -> None:
    with ExitStack() as stack:
        for stream in (False, True):
            stack.enter_context(server.request(ask("x" * 250_000, stream=stream)))
        time.sleep(0.3)
    assert_served_soon(server)


def test_with_a_second_request_sent_behind_the_first(server: Server) -> None:
    """What is pipelined must not hide that the client has gone."""
    served = 0
    while served < 3:  # who was here before may have to be forgotten first
        with server.request(long()) as connection:
            send(connection, ask())
            if b"200 OK" in receive_until(connection, b"\r\n\r\n"):
                receive_until(connection, b'"content":"')
                served += 1
    assert_served_soon(server)


def test_at_once(server: Server) -> None:
    for number in range(40):
        with server.request(long()):
            time.sleep(number / 4000)
    assert_served_soon(server)


def test_a_reader_that_does_not_read_stops_nobody(server: Server) -> None:
    with server.stream(), server.stream() as other:
        time.sleep(0.5)
        for _ in range(20):
            receive_until(other, b'"content":"')
            assert not is_silent(other, 10)


def test_a_full_queue_is_a_429_that_says_when_to_come_again(server: Server) -> None:
    with server.stream(), server.stream(), server.queued(ask()):
        for stream in (False, True):
            refused = server.post(ask(stream=stream))
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"


def test_more_choices_than_ever_fit_are_a_400_that_says_how_many_do(server: Server) -> None:
    """Two run and one waits: who was told to come again with four would do so for ever."""
    prompts = {"model": MODEL, "prompt": ["a", "b"], "n": 2, "max_tokens": 1}
    for body, path, param in ((ask(n=4), CHAT, "n"), (prompts, "/v1/completions", "prompt")):
        refused = server.post(body, path)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param
        assert "at most 3" in refused.json()["error"]["message"]
