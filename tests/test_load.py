"""The pure parts of the benchmarks' HTTP client, and the numbers that are made of what it measures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.chats import Chat
from benchmarks.http_client import EventParser, HttpError, ResponseParser, Target
from benchmarks.measure import fairness, percentile

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places})
    return [data[first:last] for first, last in zip([0, *ends], [*ends, len(data)], strict=True)]


def chunked(payload: bytes, sizes: list[int]) -> bytes:
    wire = b""
    while payload:
        size = sizes.pop() if sizes else len(payload)
        wire += b"%x;note=1\r\n%s\r\n" % (len(payload[:size]), payload[:size])
        payload = payload[size:]
    return wire + b"0\r\n\r\n"


@given(
    st.lists(st.binary(min_size=1, max_size=9).filter(lambda data: not set(data) & set(b"\r\n"))),
    st.lists(st.integers(1, 40)),
    st.lists(st.integers(0, 10_000)),
)
def test_a_stream_in_random_pieces(payloads: list[bytes], sizes: list[int], places: list[int]) -> None:
    text = b": ping\n\n" + b"".join(b"data: " + payload + b"\r\n\r\n" for payload in payloads)
    response, events, found = ResponseParser(), EventParser(), []
    for piece in cut(HEAD + chunked(text, sizes) + b"HTTP/1.1", places):
        found += events.feed(response.feed(piece))
    assert response.ended
    assert response.status == 200
    assert response.rest == b"HTTP/1.1"
    assert found == payloads


@given(st.binary(max_size=50), st.lists(st.integers(0, 10_000)))
def test_a_body_of_a_known_length(body: bytes, places: list[int]) -> None:
    response, found = ResponseParser(), b""
    wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n%sx" % (len(body), body)
    for piece in cut(wire, places):
        found += response.feed(piece)
    assert (response.status, found, response.rest) == (429, body, b"x")
    assert response.ended


def test_several_lines_of_data_are_one_event() -> None:
    assert EventParser().feed(b"event: x\ndata: a\ndata:b\n\ndata: c\n") == [b"a\nb"]


def test_a_response_that_is_cut_is_none() -> None:
    for wire in (b"", HEAD, HEAD + b"5\r\nab", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"):
        response = ResponseParser()
        response.feed(wire)
        with pytest.raises(HttpError):
            response.end()
    whole = ResponseParser()
    assert whole.feed(b"HTTP/1.0 200 OK\r\n\r\nab") == b"ab"
    whole.end()
    assert whole.ended


def test_no_http() -> None:
    with pytest.raises(HttpError):
        ResponseParser().feed(b"SSH-2.0\r\n\r\n")
    with pytest.raises(HttpError):
        ResponseParser().feed(HEAD + b"no size\r\n")


@pytest.mark.parametrize(
    ("url", "prefix", "port"),
    [
        ("http://h:8000", "/v1", 8000),
        ("http://h:8000/v1/", "/v1", 8000),
        ("https://h/api/v1", "/api/v1", 443),
        ("http://h/api", "/api/v1", 80),
    ],
)
def test_addresses(url: str, prefix: str, port: int) -> None:
    target = Target.of(url, "key")
    assert (target.host, target.prefix, target.port) == ("h", prefix, port)
    assert target.request("models").startswith(f"GET {prefix}/models HTTP/1.1\r\n".encode())
    assert b"Authorization: Bearer key\r\n" in target.request("/health")


def test_percentiles() -> None:
    values = [3.0, 1.0, 2.0, 5.0, 4.0]
    assert [percentile(values, percent) for percent in (0, 50, 100)] == [1, 3, 5]
    assert percentile(values, 95) == pytest.approx(4.8)
    assert percentile([7.0], 99) == 7
    assert math.isnan(percentile([], 50))


def test_fairness() -> None:
    assert fairness([2, 2, 2]) == pytest.approx(1)
    assert fairness([5, 0, 0, 0]) == pytest.approx(0.25)
    assert math.isnan(fairness([]))


def test_tokens_until_a_moment_by_the_mean_of_a_chunk() -> None:
    chat = Chat(times=[1.0, 2.0, 3.0, 4.0])
    assert chat.tokens_until(2.5) == 2
    assert chat.gaps == [1, 1, 1]
