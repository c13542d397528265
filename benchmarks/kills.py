"""The worker killed under load: what runs fails cleanly and soon, what waits is served, the server comes back."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.chats import Chat, chat
from benchmarks.measure import percentile, table
from benchmarks.server_process import ServerProcess

MOST_SECONDS = 5.0  # from the kill to the end of every running request
PATIENCE = 120.0  # for the next worker


@dataclass
class Kills:
    """What came of them."""

    failing: list[float] = field(default_factory=list)  # seconds to the failure of a running request
    recovering: list[float] = field(default_factory=list)  # seconds until /health is 200 again
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[tuple[str, bytes]] = field(default_factory=list)


async def kill(server: ServerProcess) -> float:
    """The moment."""
    worker = server.worker
    if worker is not None:
        worker.kill()
    return time.perf_counter()


async def recover(server: ServerProcess, since: float) -> float | None:
    """Seconds until /health is 200 again, after it has been otherwise; None: it is not."""
    lost = False
    while time.perf_counter() - since < PATIENCE:
        status, _ = await server.target.ask("/health")
        if lost and status == 200:
            return time.perf_counter() - since
        lost = lost or status != 200 or time.perf_counter() - since > 1
        await asyncio.sleep(0.02)
    return None


async def kill_now_and_then(server: ServerProcess, seconds: float, count: int, kills: Kills) -> None:
    """Evenly, none at the very end."""
    for _ in range(count):
        started = time.perf_counter()
        await asyncio.sleep(seconds / (count + 1))
        recovered = await recover(server, await kill(server))
        if recovered is None:
            kills.faults.append(("no worker after a kill", b""))
        else:
            kills.recovering.append(recovered)
        if time.perf_counter() - started > 2 * seconds / count:
            return


async def rounds(server: ServerProcess, count: int, places: int, endless: dict[str, Any], seed: int) -> Kills:
    """Each with streams and whole answers in all places, and two requests that wait.

    All differ: one that was in flight at two deaths would be refused.
    """
    numbers, kills = random.Random(seed), Kills()
    for number in range(count):
        running = [Chat() for _ in range(places)]
        bodies = [endless | {"stream": place % 2 == 0, "user": f"{number}, {place}"} for place in range(places)]
        tasks = [asyncio.create_task(chat(server.target, *pair)) for pair in zip(bodies, running, strict=True)]
        await _streaming(running[::2])
        short = endless | {"max_tokens": 4, "min_tokens": 0, "user": f"{number}"}
        waiting = [Chat(), Chat()]
        waits = [
            asyncio.create_task(chat(server.target, short | {"stream": stream}, one))
            for stream, one in zip((True, False), waiting, strict=True)
        ]
        await asyncio.sleep(numbers.uniform(0, 0.3))
        early = [one.failure or "answered" for one in running if one.ended]
        killed = await kill(server)
        if number % 4 == 3:
            await _kill_next(server, numbers.uniform(0, 1.5))
        recovered = await recover(server, killed)
        if recovered is None:
            kills.faults.append((f"no worker {PATIENCE:g} s after a kill", b""))
            return kills
        kills.recovering.append(recovered)
        await asyncio.wait([*tasks, *waits], timeout=30)
        kills.faults += [(f"an endless answer ended before the kill: {reason}", b"") for reason in early]
        _judge(kills, running, waiting, killed)
        for task in [*tasks, *waits]:
            task.cancel()
        await asyncio.gather(*tasks, *waits, return_exceptions=True)
    return kills


async def _streaming(chats: list[Chat]) -> None:
    end = time.perf_counter() + 30
    while time.perf_counter() < end:
        if all(one.times or one.ended for one in chats):
            return
        await asyncio.sleep(0.01)


async def _kill_next(server: ServerProcess, delay: float) -> None:
    """The replacement, while it loads."""
    first = server.worker
    end = time.perf_counter() + PATIENCE
    while time.perf_counter() < end:
        worker = server.worker
        if worker is not None and (first is None or worker.pid != first.pid):
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(delay)
    try:
        await kill(server)
    except psutil.Error:
        return


def _judge(kills: Kills, running: list[Chat], waiting: list[Chat], killed: float) -> None:
    for name, chats in (("running", running), ("waiting", waiting)):
        for one in chats:
            outcome = one.failure or ("answered" if one.ended else "nothing")
            kills.outcomes[name, outcome] += 1
            if not one.ended:
                kills.faults.append((f"{name} at the kill: neither answered nor failed", b""))
            elif not one.clean:
                kills.faults.append((f"{name} at the kill: {one.failure}, not told cleanly", b""))
            if name == "running" and one.ended:
                kills.failing.append(one.ended - killed)
                if one.failure is None or one.ended - killed > MOST_SECONDS:
                    kills.faults.append((f"running at the kill: {outcome} after {one.ended - killed:.2f} s", b""))


def kills_table(kills: Kills) -> None:
    rows = [[f"{name}: {outcome}", count] for (name, outcome), count in sorted(kills.outcomes.items())]
    for name, seconds in (("kill to failure", kills.failing), ("kill to /health 200", kills.recovering)):
        if seconds:
            rows.append([f"{name}, s p50 / most", f"{percentile(seconds, 50):.3f} / {max(seconds):.3f}"])
    table(f"{len(kills.recovering)} kills of the worker under load", ["", ""], rows)
