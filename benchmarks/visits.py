"""What clients do: wait for answers, read slowly, go away at any moment, send nonsense. And what comes of it."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.chats import PATH, Chat, chat, encode, read
from benchmarks.http_client import Connection, HttpError, Target
from benchmarks.traffic import Traffic

REFUSED = ("400", "404", "413", "415")
BUSY = ("429 queue_full",)
DIED = ("500 engine_failed", "503 unavailable", "event: engine_failed", "event: unavailable")
VISITS = {"whole": 8, "slow": 1, "kept alive": 2, "pipelined": 1, "abort": 4, "bad": 4, "nonsense": 1, "lists": 1}


class Reply(NamedTuple):
    """Of an answer, what depends on the body alone."""

    text: str
    finish: str | None


@dataclass
class Record:
    """All that came of the visits."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind
    replies: dict[bytes, set[Reply]] = field(default_factory=dict)  # by the body, whole answers only
    faults: list[tuple[str, bytes]] = field(default_factory=list)  # what is wrong, and the body

    def take(self, kind: str, body: bytes, found: Chat, allowed: tuple[str, ...]) -> None:
        self.outcomes[kind, found.failure or "answered"] += 1
        if found.failure is None:
            return
        if not found.clean or not found.failure.startswith(allowed):
            self.faults.append((f"{kind}: {found.failure}{'' if found.clean else ', not told cleanly'}", body))

    def keep(self, body: dict[str, Any], found: Chat) -> None:
        """For the comparison with its solo run, which is no stream."""
        if found.failure is None:
            asked = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
            self.replies.setdefault(encode(asked), set()).add(Reply(found.text, found.finish))


class Visitor:
    """One client, who visits again and again."""

    def __init__(self, target: Target, traffic: Traffic, numbers: random.Random, record: Record, kills: bool) -> None:
        self._target = target
        self._traffic = traffic
        self._numbers = numbers
        self._record = record
        self._allowed = BUSY + (DIED if kills else ())

    async def run(self, until: float) -> None:
        """until: in the event loop's time."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await self.visit()
            await asyncio.sleep(self._numbers.choice([0, 0, 0.01, 0.1]))

    async def visit(self) -> None:
        match self._numbers.choices(list(VISITS), list(VISITS.values()))[0]:
            case "whole":
                await self._whole(0)
            case "slow":
                await self._whole(0.05)
            case "kept alive":
                await self._several(pipelined=False)
            case "pipelined":
                await self._several(pipelined=True)
            case "abort":
                await self.abort()
            case "bad":
                await self._bad()
            case "nonsense":
                await self._nonsense()
            case "lists":
                await self._lists()

    async def _whole(self, pause: float) -> None:
        kind, body = self._traffic.good()
        self._take(f"{kind}, slow" if pause else kind, body, await chat(self._target, body, pause=pause))

    def _take(self, kind: str, body: dict[str, Any], found: Chat) -> None:
        self._record.take(kind, encode(body), found, self._allowed)
        self._record.keep(body, found)

    async def _several(self, *, pipelined: bool) -> None:
        """Over one connection; sometimes the client goes before the last one."""
        bodies = [self._traffic.good() for _ in range(self._numbers.randrange(2, 5))]
        leaves = self._numbers.random() < 0.3
        connection = await self._target.connect()
        try:
            if pipelined:
                await connection.send(b"".join(self._target.request(PATH, encode(body)) for _, body in bodies))
            for number, (_, body) in enumerate(bodies):
                if leaves and number == len(bodies) - 1:
                    connection.reset()
                    self._record.outcomes["pipelined" if pipelined else "kept alive", "went away"] += 1
                    return
                if not pipelined:
                    await connection.send(self._target.request(PATH, encode(body)))
                self._take("pipelined" if pipelined else "kept alive", body, await read(connection, Chat()))
        except OSError as error:
            self._record.faults.append((f"a kept connection is lost: {type(error).__name__}", encode(bodies[0][1])))
        finally:
            connection.close()

    async def abort(self) -> None:
        """Go away at a moment of all those that there are."""
        numbers = self._numbers
        phase = numbers.choice(["connected", "in the head", "in the body", "sent", "soon after", "head", "stream"])
        body = self._traffic.good()[1] | {"max_tokens": 10 * numbers.randrange(1, 30)}
        request = self._target.request(PATH, encode(body))
        head = request.index(b"\r\n\r\n") + 4
        bytes_sent = {"connected": 0, "in the head": numbers.randrange(1, head)}
        bytes_sent["in the body"] = numbers.randrange(head, len(request))
        connection = await self._target.connect()
        try:
            if count := bytes_sent.get(phase, len(request)):
                await connection.send(request[:count])
            if phase not in bytes_sent and phase != "sent":
                await asyncio.wait_for(self._follow(connection, phase), numbers.uniform(0, 0.5))
        except (TimeoutError, HttpError, OSError):
            pass  # this client has no interest in why
        finally:
            if numbers.random() < 0.5:
                connection.reset()
            connection.close()
        self._record.outcomes["abort", phase] += 1

    async def _follow(self, connection: Connection, phase: str) -> None:
        if phase == "soon after":
            await asyncio.sleep(1)
        response = await connection.head()
        if phase == "stream":
            left = self._numbers.randrange(1, 20)
            async for _ in connection.body(response):
                left -= 1
                if not left:
                    return

    async def _bad(self) -> None:
        kind, raw = self._traffic.bad()
        found = Chat()
        connection = await self._target.connect()
        try:
            await connection.send(self._target.request(PATH, raw))
            await read(connection, found)
        except OSError as error:
            found.failure, found.clean = f"connection lost: {type(error).__name__}", False
        finally:
            connection.close()
        self._record.take(kind, raw, found, REFUSED + self._allowed)
        if kind != "mutated" and found.failure is None:
            self._record.faults.append((f"{kind}: answered, and should be refused", raw))

    async def _nonsense(self) -> None:
        """No HTTP at all; whatever comes back is right."""
        connection = await self._target.connect()
        try:
            await connection.send(self._numbers.randbytes(self._numbers.randrange(1, 300)) + b"\r\n\r\n")
            await asyncio.wait_for(connection.head(), 1)
        except (TimeoutError, HttpError, OSError):
            pass
        finally:
            connection.close()
        self._record.outcomes["nonsense", "sent"] += 1

    async def _lists(self) -> None:
        path, good = self._numbers.choice([("models", 200), ("/health/live", 200), ("/", 404), ("models/none", 404)])
        try:
            status, content = await self._target.ask(path)
            json.loads(content)
        except (HttpError, OSError, ValueError) as error:
            self._record.faults.append((f"GET {path}: {error}", b""))
            return
        self._record.outcomes["lists", str(status)] += 1
        if status != good:
            self._record.faults.append((f"GET {path}: {status}", content))
