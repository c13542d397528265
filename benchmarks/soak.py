"""Random traffic against our own server, and then: is it as it was, and was every answer the right one?

Parts: soak (--minutes of good, bad and broken requests, aborts, slow readers and kills of the worker; then each answer
is compared with its solo run on a fresh server), connects (clients that come and go away at once) and kills (of the
worker, under load). Each ends with the same checks: places are free, and handles, threads, memory, processes and files
are what they were. The exit code is 1 where anything fails; the bodies at fault are written to --failures.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.chats import chat
from benchmarks.kills import Kills, kill_now_and_then, kills_table, rounds
from benchmarks.leaks import SLACK_BYTES, Sizes, footprints, healthy, settled
from benchmarks.measure import table
from benchmarks.server_process import ServerProcess
from benchmarks.traffic import Traffic
from benchmarks.visits import Record, Reply, Visitor

PARTS = ("soak", "connects", "kills")
PLACES = 4
MODEL = "soak"
TINY: dict[str, Any] = {"dtype": "float32", "threads": 1, "memory": "64MiB", "capacity": 256, "block": 32}
Fault = tuple[str, bytes]


class Soak:
    """All parts of a run."""

    def __init__(self, model: str | Path, arguments: argparse.Namespace) -> None:
        self._model = model
        self._tiny = arguments.model == "tiny"
        self._arguments = arguments
        self.most = 200 if self._tiny else 48  # tokens of an answer
        self.faults: list[Fault] = []

    def server(self, **changes: Any) -> ServerProcess:
        settings: dict[str, Any] = {
            "max_running": PLACES,
            "max_waiting": 8,
            "ping_seconds": 0.3,
            "max_output_tokens": self.most,
        }
        settings |= TINY if self._tiny else {"dtype": "float32", "capacity": 512}
        return ServerProcess(self._model, served_model_name=MODEL, **(settings | changes))

    def lasting(self, tokens: int) -> dict[str, Any]:
        """A body whose answer takes so many tokens, whatever the model says."""
        messages = [{"role": "user", "content": "hi"}]
        asked = {"model": MODEL, "messages": messages, "temperature": 1, "seed": 1, "stream": True}
        return asked | {"max_tokens": tokens, "min_tokens": tokens}

    def traffic(self, numbers: random.Random) -> Traffic:
        return Traffic(numbers, MODEL, self.most, 6000 if self._tiny else 2000)

    def visitors(self, server: ServerProcess, record: Record, count: int, *, kills: bool) -> list[Visitor]:
        seeds = random.Random(self._arguments.seed)
        found = []
        for _ in range(count):
            numbers = random.Random(seeds.randrange(2**32))
            found.append(Visitor(server.target, self.traffic(numbers), numbers, record, kills))
        return found

    async def checked(
        self, server: ServerProcess, name: str, work: Callable[[Sizes], Awaitable[list[Fault]]], most: int
    ) -> None:
        """Warm up, work, and see what is left. most: tokens of an answer of this server."""
        await self._warm_up(server)
        before, sizes = footprints(server), Sizes([])
        sampling = asyncio.create_task(_sample(server, sizes))
        faults = await work(sizes)
        sampling.cancel()
        left, after = await settled(server, before, self.lasting(most), PLACES)
        faults += [(fault, b"") for fault in left]
        code, forgotten = await asyncio.to_thread(server.stop)
        if code != 0:
            faults.append((f"SIGTERM: exit code {code}", b""))
        faults += [(f"left behind: {what}", b"") for what in forgotten]
        if "Traceback" in server.log:
            first = server.log.index("Traceback")
            faults.append((f"a traceback in the log: ...{server.log[max(0, first - 300) : first + 3000]}", b""))
        rows: list[list[object]] = [
            [who, *pair] for who, *pair in zip(("API process", "worker"), before, after, strict=True)
        ]
        table(f"{name}: what the server holds", ["", "warm", "at the end"], rows)
        print(f"\nResident memory, MiB a minute in the second half: {sizes.trends()}. ", end="")
        print(f"A fault is more than {SLACK_BYTES / 2**20:.0f} MiB above what was warm. Exit code {code}.", flush=True)
        self.faults += [(f"{name}: {fault}", body) for fault, body in faults]

    async def _warm_up(self, server: ServerProcess) -> None:
        """Visits of every kind, so that threads and caches are there."""
        visitors = self.visitors(server, Record(), 12, kills=False)
        until = asyncio.get_running_loop().time() + self._arguments.warm_up
        await asyncio.gather(*(visitor.run(until) for visitor in visitors))
        await asyncio.sleep(1)

    async def soak(self) -> None:
        record, kills = Record(), Kills()

        async def work(_: Sizes) -> list[Fault]:
            seconds = 60 * self._arguments.minutes
            until = asyncio.get_running_loop().time() + seconds
            killing = asyncio.create_task(kill_now_and_then(server, seconds, self._arguments.kills, kills))
            visitors = self.visitors(server, record, self._arguments.clients, kills=self._arguments.kills > 0)
            await asyncio.gather(*(visitor.run(until) for visitor in visitors))
            await killing
            return kills.faults + await healthy_faults(server)

        with self.server() as server:
            await self.checked(server, "Soak", work, self.most)
        divergent = await self._replay(record)
        self.faults += [*record.faults, *divergent]
        rows = [[kind, outcome, count] for (kind, outcome), count in sorted(record.outcomes.items())]
        table(f"{self._arguments.minutes:g} minutes of requests, by what came of them", ["", "", ""], rows)
        longest = f"{max(kills.recovering):.1f} s" if kills.recovering else "-"
        summary: list[list[object]] = [
            ["requests", f"{record.outcomes.total():,}"],
            ["kills of the worker", len(kills.recovering)],
            ["longest time to recover", longest],
            ["distinct answers replayed alone", f"{min(len(record.replies), self._arguments.replays):,}"],
            ["divergent", len(divergent)],
        ]
        table("Soak", ["", ""], summary)

    async def _replay(self, record: Record) -> list[Fault]:
        """Each answer alone, on a server that has served nothing else."""
        faults = []
        with self.server() as server:
            for body, replies in list(record.replies.items())[: self._arguments.replays]:
                found = await chat(server.target, json.loads(body))
                alone = Reply(found.text, found.finish)
                if found.failure:
                    faults.append((f"replay: {found.failure}", body))
                elif replies != {alone}:
                    others = [reply for reply in replies if reply != alone]
                    faults.append((f"divergent: {others!r}, alone {alone!r}", body))
            await asyncio.to_thread(server.stop)
        return faults

    async def connects(self) -> None:
        record = Record()

        async def work(_: Sizes) -> list[Fault]:
            left = self._arguments.connects

            async def come_and_go(visitor: Visitor) -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await visitor.abort()

            began = time.perf_counter()
            await asyncio.gather(*(come_and_go(one) for one in self.visitors(server, record, 20, kills=False)))
            rows = [[phase, count] for (_, phase), count in sorted(record.outcomes.items())]
            seconds = time.perf_counter() - began
            table(f"{record.outcomes.total():,} clients that go away, in {seconds:.0f} s", ["when", ""], rows)
            return await healthy_faults(server)

        with self.server() as server:
            await self.checked(server, "Connects", work, self.most)

    async def kills(self) -> None:
        most = 100_000

        async def work(_: Sizes) -> list[Fault]:
            count, seed = self._arguments.kills, self._arguments.seed
            found = await rounds(server, count, PLACES, self.lasting(most), seed)
            kills_table(found)
            return found.faults

        with self.server(max_output_tokens=most) as server:
            await self.checked(server, "Kills", work, self.most)


async def healthy_faults(server: ServerProcess) -> list[Fault]:
    return [(fault, b"") for fault in await healthy(server, 60)]


async def _sample(server: ServerProcess, sizes: Sizes) -> None:
    while True:
        sizes.sample(server)
        await asyncio.sleep(2)


def write(faults: list[Fault], path: Path) -> None:
    """A line each, in JSON."""
    with path.open("w") as file:
        for fault, body in faults:
            file.write(json.dumps({"fault": fault, "body": body.decode("latin-1")}) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--parts", type=lambda text: text.split(","), default=list(PARTS), metavar="LIST", help=", ".join(PARTS))
    add("--model", default="tiny", help="tiny (random, made on the spot) or a model as of sinkahead serve")
    add("--minutes", type=float, default=10)
    add("--clients", type=int, default=12)
    add("--kills", type=int, default=6, help="of the worker, in soak and in kills (default: 6)")
    add("--connects", type=int, default=1000)
    add("--replays", type=int, default=100_000, help="most answers that are compared")
    add("--warm-up", type=float, default=20, help="seconds of traffic before the first look (default: 20)")
    add("--seed", type=int, default=0)
    add("--failures", type=Path, default=Path("soak-failures.jsonl"), metavar="FILE")
    return parser.parse_args()


async def run(soak: Soak, parts: list[str]) -> None:
    for part in parts:
        print(f"{part} ...", file=sys.stderr, flush=True)
        await {"soak": soak.soak, "connects": soak.connects, "kills": soak.kills}[part]()


def main() -> int:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        model: str | Path = arguments.model
        if model == "tiny":
            from tests.tiny import save_tiny_model

            model = save_tiny_model(Path(folder))
        print(f"{arguments.model}, seed {arguments.seed}", flush=True)
        soak = Soak(model, arguments)
        asyncio.run(run(soak, arguments.parts))
    print(f"\n{len(soak.faults)} faults" + ":" * bool(soak.faults))
    for fault, body in soak.faults[:20]:
        print(f"- {fault}" + f"\n  {body[:300]!r}" * bool(body))
    if soak.faults:
        write(soak.faults, arguments.failures)
        print(f"All of them: {arguments.failures}")
    return bool(soak.faults)


if __name__ == "__main__":
    sys.exit(main())
