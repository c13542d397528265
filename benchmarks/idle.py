"""Sessions that come back after others had their turn: what it costs from each place that they may have gone to."""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.chats import chat
from benchmarks.conversation import text
from benchmarks.http_client import HttpError, Target
from benchmarks.measure import percentile, table
from benchmarks.server_process import ServerProcess
from server.journal_file import JournalFile
from server.snapshots import CACHES, SUFFIX

TIERS = {
    "device": "device",
    "host": "host memory",
    "disk": "disk (snapshot)",
    "nothing": "nothing: read anew from the journal",
}
PATIENCE = 120.0  # for snapshots to be written


class Visits:
    """Our own server's sessions, by name; each has more tokens than its cache holds."""

    def __init__(self, server: ServerProcess, model: str, capacity: int, seed: int) -> None:
        self.target: Target = server.target
        self._folder = server.folder / "sessions"
        self._fixed = {"model": model, "stream": True, "temperature": 0, "stream_options": {"include_usage": True}}
        self._words = capacity + capacity // 8
        self._numbers = random.Random(seed)
        self._paths: dict[str, Path] = {}
        self.times: dict[str, list[float]] = defaultdict(list)  # seconds to the first text, by tier
        self.read: dict[str, list[int]] = defaultdict(list)  # tokens

    async def fill(self, count: int) -> None:
        """Begin so many, and wait until each has a snapshot."""
        for place in range(count):
            await self._say(f"idle-{place}", self._words)
        journal = JournalFile(self._folder)
        for stored in journal.load_all():
            self._paths[stored.conversation.id] = self._folder / CACHES / f"{stored.conversation.handle}{SUFFIX}"
        journal.close()
        for path in self._paths.values():
            await asyncio.to_thread(_wait_for, path)

    async def card(self, name: str) -> dict[str, Any]:
        status, body = await self.target.ask(f"sessions/{name}")
        if status != 200:
            raise RuntimeError(f"GET sessions/{name}: {status} {body[:200]!r}")
        return dict(json.loads(body))

    def snapshot(self, name: str) -> Path:
        return self._paths[name]

    async def come_back(self) -> None:
        """One of them, at random. Of those whose cache is on the disk only, every second one loses it."""
        name = self._numbers.choice(sorted(self._paths))
        tier, path = (await self.card(name))["state"], self.snapshot(name)
        if tier == "disk":
            await asyncio.to_thread(_wait_for, path)  # it may have left a moment ago
            if self._numbers.random() < 0.5:
                path.unlink()
                tier = "nothing"
            else:
                _drop_from_memory(path)
        seconds, read = await self._say(name, 8, session_mode="append")
        self.times[tier].append(seconds)
        self.read[tier].append(read)

    async def _say(self, name: str, words: int, **changes: Any) -> tuple[float, int]:
        messages = [{"role": "user", "content": text(self._numbers, words)}]
        body = self._fixed | {"messages": messages, "session_id": name, "max_tokens": 4, "min_tokens": 4} | changes
        found = await chat(self.target, body)
        if found.failure or found.usage is None or not found.times:
            raise RuntimeError(f"a turn of {name} failed: {found.failure or 'no text'}")
        return found.times[0] - found.began, found.usage.prompt_tokens - found.usage.cached_tokens


def _wait_for(path: Path) -> None:
    """Until the server has written it."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            raise RuntimeError(f"no snapshot after {PATIENCE:g} s")
        time.sleep(0.05)


def _drop_from_memory(path: Path) -> None:
    """What the system keeps of the file: it is to come from the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


async def sizes(server: ServerProcess, model: str, capacity: int) -> tuple[int, int]:
    """Bytes of a full session in its place, and packed."""
    visits = Visits(server, model, capacity, 0)
    await visits.fill(1)
    return int((await visits.card("idle-0"))["bytes"]), visits.snapshot("idle-0").stat().st_size


async def idle_table(server: ServerProcess, model: str, capacity: int, sessions: int, visits: int, seed: int) -> None:
    found = Visits(server, model, capacity, seed)
    await found.fill(sessions)
    evicted = (await found.card("idle-0"))["evicted"]
    print(f"{sessions} sessions filled, {evicted} tokens evicted", file=sys.stderr, flush=True)
    for _ in range(visits):
        try:
            await found.come_back()
        except (HttpError, OSError) as error:
            raise RuntimeError(f"a visit failed: {error}") from None
    again = statistics.median(found.times["nothing"]) if found.times["nothing"] else None
    lines = []
    for tier, name in TIERS.items():
        if times := found.times[tier]:
            middle = statistics.median(times)
            ratio = f"{again / middle:.1f}x" if again else "-"
            read = f"{statistics.median(found.read[tier]):,.0f}"
            lines.append([name, len(times), read, f"{1e3 * middle:.1f}", f"{1e3 * percentile(times, 95):.1f}", ratio])
    header = ["cache comes from", "turns", "tokens read, p50", "first token, ms p50", "p95", "faster than from nothing"]
    table(f"{sessions} sessions with full caches (capacity {capacity:,}) that come back at random", header, lines)
