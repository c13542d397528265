"""Connections that only take room are closed; those that are of use are not."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
import uvicorn

from server import http
from server.http import HttpProtocol

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: object, receive: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
    await asyncio.sleep(0.5)  # longer than a head may take
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def with_server(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Callable[[], Awaitable[Streams]]], Awaitable[None]]
) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.2)

    async def run() -> None:
        config = uvicorn.Config(app, port=0, http=HttpProtocol, lifespan="off", log_config=None, ws="none")
        server = uvicorn.Server(config)
        server.config.load()
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  it tells in no other way
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            await asyncio.wait_for(use(lambda: asyncio.open_connection("127.0.0.1", port)), 20)
        finally:
            server.should_exit = True
            await serving

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", b"G", REQUEST[:-2]])
def test_who_never_ends_a_head_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    async def use(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()

    with_server(monkeypatch, use)


def test_also_behind_an_answer_and_however_slowly_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        writer.write(REQUEST)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(ConnectionError):  # which comes when we write once more
            for byte in b"GET / HTTP/1.1 and so on, for ever and ever, byte by byte":
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
            assert await reader.read() == b""
        assert reader.at_eof() or reader.exception() is not None
        writer.close()

    with_server(monkeypatch, use)


def test_who_waits_for_an_answer_or_between_two_requests_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(connect: Callable[[], Awaitable[Streams]]) -> None:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(REQUEST)
            await reader.readuntil(b"ok")
            await asyncio.sleep(0.4)
        writer.close()

    with_server(monkeypatch, use)
