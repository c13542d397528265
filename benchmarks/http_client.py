"""HTTP/1.1 over raw sockets, with as little work for each byte as can be: a client must not be what is measured."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit


class HttpError(Exception):
    """What came is no HTTP, or ended too soon."""


class ResponseParser:
    """One response, fed in pieces of any size. What follows it on the connection is left in `rest`."""

    def __init__(self) -> None:
        self.status = 0  # until the head is whole
        self.headers: dict[str, str] = {}
        self.ended = False
        self.rest = b""
        self._left: int | None = None  # bytes of this body or chunk; None: a line comes next, or all until the end
        self._chunked = False
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in it. Raises `HttpError`."""
        self.rest += data
        if not self.status and not self._read_head():
            return b""
        if not self._chunked:
            body = self.rest if self._left is None else self.rest[: self._left]
            self.rest = self.rest[len(body) :]
            if self._left is not None:
                self._left -= len(body)
                self.ended = not self._left
            return body
        pieces = []
        while not self.ended and (piece := self._next_piece()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    def end(self) -> None:
        """The connection has ended. Raises `HttpError` where more was to come."""
        if not self.status or self._chunked or self._left is not None:
            raise HttpError("the connection ended before the response" if self.status else "no response")
        self.ended = True

    def _read_head(self) -> bool:
        head, mark, rest = self.rest.partition(b"\r\n\r\n")
        if not mark:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, words = first.partition(" ")
        if not (version.startswith("HTTP/1.") and words[:3].isdecimal()):
            raise HttpError(f"no HTTP: {first[:80]!r}")
        self.rest = rest
        if words.startswith("1"):  # 100 Continue: the response comes behind it
            return self._read_head()
        self.status = int(words[:3])
        self.headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked:
            length = self.headers.get("content-length")
            self._left = None if length is None else int(length)
            self.ended = self._left == 0 or self.status in (204, 304)
        return True

    def _next_piece(self) -> bytes | None:
        """Of a chunk. None: more must come first."""
        if self._left:
            piece = self.rest[: self._left]
            self._left -= len(piece)
            self.rest = self.rest[len(piece) :]
            return piece or None
        line, mark, rest = self.rest.partition(b"\r\n")
        if not mark:
            return None
        self.rest = rest
        if self._left == 0:  # the line's end behind a chunk
            self._left = None
        elif self._trailer:
            self.ended = not line
        else:
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise HttpError(f"no size of a chunk: {line[:80]!r}") from None
            if self._left == 0:
                self._trailer, self._left = True, None
        return b""


class EventParser:
    """Server-sent events, fed in pieces of any size: their data, without comments. Lines end with LF or CR LF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that this completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            if not (line := line.removesuffix(b"\r")):
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events


class Connection:
    """One to a server, for one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""  # of what was read: behind the last response
        self._first = b""  # of the body, what came with the head

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> ResponseParser:
        """The next response, up to its head at least. Raises `HttpError` or `OSError`."""
        parser = ResponseParser()
        self._first = parser.feed(self._rest)
        while not parser.status:
            self._first = parser.feed(await self._read(parser))
        return parser

    async def body(self, parser: ResponseParser) -> AsyncIterator[bytes]:
        """In pieces, as they come. Raises `HttpError` or `OSError`."""
        if self._first:
            yield self._first
        while not parser.ended:
            yield parser.feed(await self._read(parser))
        self._rest = parser.rest

    async def _read(self, parser: ResponseParser) -> bytes:
        data = await self._reader.read(65536)
        if not data:
            parser.end()
        return data

    def reset(self) -> None:
        """Gone without a word, as a client that crashed."""
        if (plain := self._writer.get_extra_info("socket")) is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server."""

    host: str
    port: int
    prefix: str = "/v1"
    secure: bool = False
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Self:
        """url: as clients take it, with or without the /v1 at its end."""
        parts = urlsplit(url)
        prefix = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        secure = parts.scheme == "https"
        return cls(parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80), prefix, secure, key)

    async def connect(self) -> Connection:
        context = ssl.create_default_context() if self.secure else None
        return Connection(*await asyncio.open_connection(self.host, self.port, ssl=context, limit=2**20))

    def request(self, path: str, body: bytes | None = None, *headers: str) -> bytes:
        """Its bytes. path: below /v1, or from the root where it begins with a slash."""
        path = path if path.startswith("/") else f"{self.prefix}/{path}"
        lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {self.host}:{self.port}", *headers]
        if self.key:
            lines.append(f"Authorization: Bearer {self.key}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

    async def ask(self, path: str, body: bytes | None = None, *headers: str) -> tuple[int, bytes]:
        """Status and body, over a connection of its own. Raises `HttpError` or `OSError`."""
        connection = await self.connect()
        try:
            await connection.send(self.request(path, body, *headers))
            parser = await connection.head()
            return parser.status, b"".join([piece async for piece in connection.body(parser)])
        finally:
            connection.close()
