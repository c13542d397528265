"""What a burst of requests into a full queue costs inside the server: from a request's last byte to its answer's first.

The real application, protocol and event loop, with a scheduler whose places and queue are taken; the client is another
process.
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from collections import Counter
from multiprocessing.queues import Queue
from typing import ClassVar

import uvicorn

from benchmarks.measure import percentile, table
from server.app import build_app
from server.http import HttpProtocol
from server.keys import Keys
from server.scheduler import Scheduler
from server.service import Service
from server.settings import Settings
from tests.server.peer import facts

PLACES, QUEUE = 8, 50
PATH = "/v1/chat/completions"


class _Transport:
    """Passes all on to another one, and notes when the first byte behind a request is written."""

    def __init__(self, inner: asyncio.Transport, protocol: "_Timed") -> None:
        self._inner, self._protocol = inner, protocol

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        if self._protocol.read_at:
            self._protocol.times.append(time.perf_counter() - self._protocol.read_at)
            self._protocol.read_at = 0.0
        self._inner.write(data)


class _Timed(HttpProtocol):
    times: ClassVar[list[float]] = []
    read_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Transport(transport, self))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self.read_at = time.perf_counter()
        super().data_received(data)


def burst(port: int, count: int, answers: "Queue[Counter[str]]") -> None:
    """The client's process: all connect, then all send."""

    async def run() -> Counter[str]:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
        for _, writer in connections:
            writer.write(head.encode() + body)
        lines = await asyncio.gather(*(reader.readuntil(b"\r\n") for reader, _ in connections))
        return Counter(line.decode().strip().partition(" ")[2] for line in lines)

    answers.put(asyncio.run(run()))


async def serve(count: int) -> Counter[str]:
    scheduler = Scheduler(QUEUE)
    scheduler.worker_ready(facts(PLACES), lambda message: None)
    for _ in range(PLACES + QUEUE):
        scheduler.reserve()
    app = build_app(Service(Settings(), scheduler, Keys([])))
    config = uvicorn.Config(app, port=0, http=_Timed, lifespan="off", log_config=None, ws="none", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  it tells in no other way
        await asyncio.sleep(0.01)
    spawning = multiprocessing.get_context("spawn")
    answers: Queue[Counter[str]] = spawning.Queue()
    port = server.servers[0].sockets[0].getsockname()[1]
    client = spawning.Process(target=burst, args=(port, count, answers))
    client.start()
    found = await asyncio.to_thread(answers.get)
    client.join()
    server.should_exit = True
    await serving
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    for repeat in range(arguments.repeats):
        _Timed.times.clear()
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            statuses = runner.run(serve(arguments.requests))
        times = [1e3 * seconds for seconds in _Timed.times]
        told = ", ".join(f"{number} x {status}" for status, number in statuses.items())
        rows.append([repeat + 1, told, *(f"{percentile(times, share):.1f}" for share in (50, 99, 100))])
    title = f"{arguments.requests} requests at once into a full queue, inside the server, ms"
    table(title, ["burst", "answers", "p50", "p99", "most"], rows)


if __name__ == "__main__":
    main()
