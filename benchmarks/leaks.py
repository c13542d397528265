"""What a server holds of the machine's before and after traffic, and whether it is as free as it was."""

import asyncio
import statistics
import time
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.chats import Chat, chat
from benchmarks.server_process import Footprint, ServerProcess

SLACK_HANDLES = 3
SLACK_THREADS = 2
SLACK_BYTES = 64 * 2**20  # of either process, whatever the length of the traffic
SETTLE_SECONDS = 15.0  # for connections to be closed, and for a worker to come back
SOON_SECONDS = 3.0  # for a request to an idle server


@dataclass
class Sizes:
    """Resident bytes of both processes, from time to time."""

    samples: list[tuple[float, int, int, int]]  # seconds, API process, worker, worker's pid

    def sample(self, server: ServerProcess) -> None:
        try:
            if (worker := server.worker) is not None:
                sizes = server.api.memory_info().rss, worker.memory_info().rss
                self.samples.append((time.monotonic(), *sizes, worker.pid))
        except psutil.Error:
            return  # it has just died

    def trends(self) -> str:
        """MiB a minute over the second half; of the worker only as long as it was the same one."""
        half = self.samples[len(self.samples) // 2 :]
        same = [sample for sample in half if sample[3] == half[-1][3]]
        told = []
        for name, samples, place in (("API", half, 1), ("worker", same, 2)):
            times = [sample[0] / 60 for sample in samples]
            if samples and times[-1] - times[0] > 0.5:
                line = statistics.linear_regression(times, [sample[place] / 2**20 for sample in samples])
                told.append(f"{name} {line.slope:+.2f} ({times[-1] - times[0]:.1f} min)")
            else:
                told.append(f"{name}: too short to tell")
        return ", ".join(told)


def footprints(server: ServerProcess) -> tuple[Footprint, Footprint]:
    worker = server.worker
    if worker is None:
        raise RuntimeError("there is no worker")
    return Footprint.of(server.api), Footprint.of(worker)


def leaks(before: Footprint, after: Footprint, name: str) -> list[str]:
    found = []
    if after.handles > before.handles + SLACK_HANDLES:
        found.append(f"{name}: {after.handles} handles, {before.handles} before")
    if after.threads > before.threads + SLACK_THREADS:
        found.append(f"{name}: {after.threads} threads, {before.threads} before")
    if after.bytes > before.bytes + SLACK_BYTES:
        found.append(f"{name}: {after.bytes / 2**20:.0f} MiB resident, {before.bytes / 2**20:.0f} before")
    return found


async def settled(
    server: ServerProcess, before: tuple[Footprint, Footprint], body: dict[str, Any], places: int
) -> tuple[list[str], tuple[Footprint, Footprint]]:
    """Faults of a server whose traffic has ended, and what it holds. body: of an answer that lasts a while."""
    faults = await healthy(server, 60)
    if faults:
        return faults, before
    found = await chat(server.target, body | {"max_tokens": 4, "min_tokens": 4, "stream": False})
    if found.failure or found.ended - found.sent > SOON_SECONDS:
        faults.append(f"a request to the idle server: {found.failure or f'{found.ended - found.sent:.1f} s'}")
    chats = [Chat() for _ in range(places)]
    await asyncio.gather(*(chat(server.target, body, one) for one in chats))
    if failed := [one.failure for one in chats if one.failure]:
        faults.append(f"{len(failed)} of {places} requests at once fail: {failed[0]}")
    elif max(one.answered for one in chats) > min(one.ended for one in chats):
        faults.append(f"{places} requests do not run at once: some places are not free")
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        after = footprints(server)
        left = [*leaks(before[0], after[0], "API process"), *leaks(before[1], after[1], "worker")]
        back = all(old.handles >= new.handles for old, new in zip(before, after, strict=True))
        if (back and not left) or time.monotonic() > end:
            return faults + left, after
        await asyncio.sleep(0.5)


async def healthy(server: ServerProcess, patience: float) -> list[str]:
    """Returns when the server is ready; a fault where it is not in time."""
    end = time.monotonic() + patience
    while (await server.target.ask("/health"))[0] != 200:
        if time.monotonic() > end:
            return [f"not ready {patience:g} s after the traffic's end"]
        await asyncio.sleep(0.05)
    return []
