"""The whole server killed at random moments under traffic: is anything lost, and is all that is kept right?

Clients talk in named and unnamed sessions, append, edit, regenerate, fork, delete and go away. The server is killed
(SIGKILL; now and then its API process alone, or while it starts), some snapshots are deleted or cut short, and it
starts again on the same sessions folder. Whatever end of a turn a client has seen must be there. In the end each
stored session is replayed as one stream by a fresh engine, and compared token for token. The exit code is 1 where
anything is lost or differs.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.ledger import Ledger
from benchmarks.measure import table
from benchmarks.server_process import ServerProcess
from benchmarks.talker import Talker
from server.snapshots import CACHES
from tests.replay import Oracle
from tests.tiny import save_tiny_model

MODEL = "crash"
CACHE: dict[str, Any] = {"capacity": 256, "block": 32}
SETTINGS: dict[str, Any] = {
    "served_model_name": MODEL,
    "dtype": "float32",
    "threads": 1,
    "memory": "3MiB",  # so that sessions leave their places, and host memory
    "host_memory": "1MiB",
    "max_running": 4,
    **CACHE,
}


class Crash:
    """All lives of a server on one folder."""

    def __init__(self, model: Path, folder: Path, arguments: argparse.Namespace) -> None:
        self._model, self._folder, self._arguments = model, folder, arguments
        self._numbers = random.Random(arguments.seed)
        self.ledger = Ledger()
        self._talkers = [
            Talker(f"c{number}", self.ledger, random.Random(self._numbers.randrange(2**32)), MODEL)
            for number in range(arguments.clients)
        ]
        self.kills = 0
        self.kills_starting = 0
        self.snapshots_harmed = 0
        self.starting: list[float] = []  # seconds, of each life

    def _server(self) -> ServerProcess:
        return ServerProcess(self._model, sessions_folder=self._folder, **SETTINGS)

    async def run(self) -> None:
        while self.kills < self._arguments.kills and not self.ledger.lost:
            if self._numbers.random() < 0.1:
                await self._start_and_strike()
            await self._live_and_strike()
            if self._numbers.random() < 0.4:
                self._harm_snapshots()
            print(f"{self.kills} kills, {len(self.ledger.finished)} turns", file=sys.stderr, flush=True)
        with self._server() as server:
            await self._look(server)
            code, left = await asyncio.to_thread(server.stop)
            if code != 0 or left:
                self.ledger.faults.append(f"SIGTERM: exit code {code}, left behind: {left}")

    async def _start_and_strike(self) -> None:
        """A server that never gets ready."""
        with ExitStack() as stack:
            server = self._server()
            stack.push(server)
            await asyncio.sleep(self._numbers.uniform(0.5, 5))
            self._strike(server)
        self.kills_starting += 1

    async def _live_and_strike(self) -> None:
        began = time.perf_counter()
        with self._server() as server:
            self.starting.append(time.perf_counter() - began)
            await self._look(server)
            url = f"http://127.0.0.1:{server.port}"
            talking = [asyncio.create_task(talker.run(url)) for talker in self._talkers]
            await asyncio.sleep(self._numbers.uniform(0.1, self._arguments.seconds))
            for talker in self._talkers:
                talker.strike()
            self._strike(server)
            await asyncio.gather(*talking)
            if "Traceback" in server.log:
                self.ledger.faults.append(f"in the log: {server.log[server.log.index('Traceback') :][:3000]}")

    def _strike(self, server: ServerProcess) -> None:
        victims = [server.api]
        if self._numbers.random() < 0.75:  # else its worker has to see by itself that it is alone
            victims += server.api.children(recursive=True)
            self._numbers.shuffle(victims)
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
        server.api.wait()
        self.kills += 1

    def _harm_snapshots(self) -> None:
        for path in sorted((self._folder / CACHES).glob("*.cache")):
            match self._numbers.randrange(4):
                case 0:
                    path.unlink()
                case 1:
                    with path.open("r+b") as file:
                        file.truncate(self._numbers.randrange(path.stat().st_size))
                case _:
                    continue
            self.snapshots_harmed += 1

    async def _look(self, server: ServerProcess) -> None:
        """Is everybody's session there?"""
        cards: dict[str, Any] = {}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as http:
            more, query = True, ""
            while more:
                page = (await http.get(f"/v1/sessions?limit=1000{query}")).json()
                cards |= {card["id"]: card for card in page["data"]}
                more, query = page["has_more"], f"&after={page['data'][-1]['id']}" if page["data"] else ""
        self.ledger.check_cards(cards)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--kills", type=int, default=50)
    add("--clients", type=int, default=6)
    add("--seconds", type=float, default=4, help="most between a start and the kill (default: 4)")
    add("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as name:
        model, folder = save_tiny_model(Path(name) / "model"), Path(name) / "sessions"
        crash = Crash(model, folder, arguments)
        asyncio.run(crash.run())
        ledger = crash.ledger
        ledger.check_journal(folder, Oracle(model, **CACHE))
    outcomes = [[kind, outcome, number] for (kind, outcome), number in sorted(ledger.outcomes.items())]
    table("Turns, by what the server took them for", ["", "", ""], outcomes)
    rows: list[list[object]] = [
        ["kills", f"{crash.kills}, {crash.kills_starting} of them while it started"],
        ["snapshots deleted or cut short", crash.snapshots_harmed],
        ["turns finished", f"{len(ledger.finished):,}"],
        ["lost", len(ledger.lost)],
        ["answers compared", f"{ledger.compared:,}"],
        ["divergent", ledger.divergent],
        ["other faults", len(ledger.faults) - ledger.divergent],
        ["seconds to start again, median", f"{statistics.median(crash.starting[1:] or crash.starting):.1f}"],
    ]
    table(f"Kills of the whole server, seed {arguments.seed}", ["", ""], rows)
    faults = [*ledger.lost, *ledger.faults]
    for fault in faults[:20]:
        print(f"- {fault}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
