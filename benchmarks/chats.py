"""Chats with a server over HTTP, and when each piece of their answers came."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from benchmarks.http_client import Connection, EventParser, HttpError, ResponseParser, Target

PATH = "chat/completions"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    message: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, those that were not read; 0 where the server does not say."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class _Session(msgspec.Struct):
    """Of our own server."""

    tokens: int = 0
    evicted: int = 0


class _Error(msgspec.Struct):
    message: str = ""
    code: str | int | None = None


class _Reply(msgspec.Struct):
    """A chunk, a whole answer or an error: what is needed of each."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    session: _Session | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Reply).decode


@dataclass
class Chat:
    """One answer. Times are of `time.perf_counter`."""

    began: float = 0.0  # when the first byte was written
    sent: float = 0.0  # when the last byte of the body was written
    bytes: int = 0  # of the body
    answered: float = 0.0  # when the head had come
    ended: float = 0.0
    times: list[float] = field(default_factory=list)  # of chunks with text
    text: str = ""
    status: int = 0
    finish: str | None = None
    usage: _Usage | None = None
    session: _Session | None = None
    failure: str | None = None  # None: the answer is whole
    clean: bool = True  # a failure that was told as it should be: an error in JSON, or an event and then [DONE]

    @property
    def tokens(self) -> int:
        return self.usage.completion_tokens if self.usage else len(self.times)

    @property
    def first(self) -> float:
        """Seconds to the first text."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    def take(self, chunk: _Reply, now: float) -> None:
        """One event of a stream. Those that come together count as one."""
        if chunk.error is not None:
            self.failure = f"event: {chunk.error.code or chunk.error.message[:40]}"
        self.usage = chunk.usage or self.usage
        self.session = chunk.session or self.session
        for choice in chunk.choices:
            self.finish = choice.finish_reason or self.finish
            if choice.delta.content:
                self.text += choice.delta.content
                if not self.times or self.times[-1] != now:
                    self.times.append(now)

    def tokens_until(self, moment: float) -> float:
        """Of those that came by then, where each chunk has the mean number."""
        return self.tokens * sum(at <= moment for at in self.times) / len(self.times) if self.times else 0.0


def encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


async def chat(target: Target, body: dict[str, Any], chat: Chat | None = None, *, pause: float = 0) -> Chat:
    """Ask over a connection of its own. Failures of every kind are told in the result.

    chat: filled while the answer comes. pause: seconds of a slow reader before each piece.
    """
    chat = chat or Chat()
    try:
        connection = await target.connect()
    except OSError as error:
        chat.failure, chat.clean, chat.ended = f"no connection: {error.strerror}", False, time.perf_counter()
        return chat
    try:
        data = encode(body)
        chat.bytes, chat.began = len(data), time.perf_counter()
        await connection.send(target.request(PATH, data))
        chat.sent = time.perf_counter()
        return await read(connection, chat, pause=pause)
    except OSError as error:
        chat.failure, chat.clean = f"connection lost: {type(error).__name__}", False
        return chat
    finally:
        chat.ended = time.perf_counter()
        connection.close()


async def read(connection: Connection, chat: Chat, *, pause: float = 0) -> Chat:
    """The next answer on a connection."""
    try:
        head = await connection.head()
        chat.status, chat.answered = head.status, time.perf_counter()
        if head.headers.get("content-type", "").startswith("text/event-stream"):
            await _read_events(connection, head, chat, pause)
        else:
            await _read_whole(connection, head, chat)
    except (HttpError, OSError, msgspec.DecodeError) as error:
        chat.failure, chat.clean = f"cut: {error}"[:80], False
    chat.ended = time.perf_counter()
    return chat


async def _read_events(connection: Connection, head: ResponseParser, chat: Chat, pause: float) -> None:
    parser, done = EventParser(), False
    async for data in connection.body(head):
        now = time.perf_counter()
        for event in parser.feed(data):
            if event == b"[DONE]":
                done = True
            else:
                chat.take(_decode(event), now)
        if pause:
            await asyncio.sleep(pause)
    if not done:
        chat.failure, chat.clean = chat.failure or "no [DONE]", False
    elif chat.failure is None and chat.finish is None:
        chat.failure, chat.clean = "no finish_reason", False


async def _read_whole(connection: Connection, head: ResponseParser, chat: Chat) -> None:
    reply = _decode(b"".join([piece async for piece in connection.body(head)]))
    if head.status != 200 or reply.error is not None:
        chat.failure = f"{head.status} {reply.error.code or '' if reply.error else ''}".strip()
        chat.clean = reply.error is not None
    elif reply.choices:
        chat.times, chat.usage, chat.session = [time.perf_counter()], reply.usage, reply.session
        chat.text, chat.finish = reply.choices[0].message.content or "", reply.choices[0].finish_reason


@dataclass
class Slot:
    """One of several streams that run all the time: when an answer ends too soon, the next prompt follows it."""

    chats: list[Chat] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(chat.tokens for chat in self.chats)

    @property
    def failures(self) -> list[str]:
        return [chat.failure for chat in self.chats if chat.failure]

    async def run(self, target: Target, bodies: Callable[[int], dict[str, Any]], tokens: int) -> None:
        """Until so many tokens have come. bodies: of the n-th chat. A failure ends it."""
        while (left := tokens - self.tokens) > 0 and not self.failures:
            self.chats.append(Chat())
            body = bodies(len(self.chats) - 1) | {"max_tokens": left}
            await chat(target, body, self.chats[-1])
            if not self.chats[-1].tokens and not self.failures:
                self.chats[-1].failure = "an empty answer"

    @property
    def ended(self) -> float:
        return self.chats[-1].ended


async def together(target: Target, bodies: Sequence[dict[str, Any]]) -> list[Chat]:
    """All at once."""
    return await asyncio.gather(*(chat(target, body) for body in bodies))
