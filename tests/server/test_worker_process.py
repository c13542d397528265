"""A worker process of its own: its messages, its death, and that it outlives nobody."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from decoding.options import EngineOptions
from decoding.turn import Sampling, Turn
from server.messages import Finish, Finished, Open, Ready, Refused, Start, Started, Step
from server.worker_process import WorkerDiedError, WorkerProcess


def options(model: Path) -> EngineOptions:
    return EngineOptions(model=str(model), dtype="float32", threads=1, memory_bytes=64 * 2**20)


def test_a_worker_serves_ignores_signals_and_its_death_is_noticed(tiny_model: Path) -> None:
    async def run() -> None:
        worker = WorkerProcess(options(tiny_model))
        assert worker.pid is not None
        try:
            assert isinstance(await worker.receive(), Ready)
            os.kill(worker.pid, signal.SIGTERM)
            os.kill(worker.pid, signal.SIGINT)
            worker.send(Open("a", 4))
            turn = Turn(session="a", tokens=[1, 2, 3, 4], sampling=Sampling(seed=0), max_tokens=10**6, end_ids=[])
            worker.send(Start(turn))
            assert await worker.receive() == Started("a", 0, 4)
            assert isinstance(await worker.receive(), Step)
            worker.send(Finish("a", 5))
            while not isinstance(message := await worker.receive(), Finished):
                assert isinstance(message, Step)
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match="exit code -9"):
                await worker.receive()
            worker.send(Start(turn))
        finally:
            await worker.stop(patience=0)

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_is_refused_in_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')

    async def run() -> None:
        worker = WorkerProcess(options(tmp_path))
        message = await worker.receive()
        assert isinstance(message, Refused)
        assert "\n" not in message.reason
        with pytest.raises(WorkerDiedError):
            await worker.receive()
        await worker.stop()
        assert worker.pid is not None
        assert not psutil.pid_exists(worker.pid)

    asyncio.run(run())


PARENT = """
import asyncio, sys
from decoding.options import EngineOptions
from server.worker_process import WorkerProcess

async def main():
    print(WorkerProcess(EngineOptions(model="/nowhere")).pid, flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    """An orphan would hold the device's memory until somebody finds it."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        time.sleep(1)
        parent.kill()
    worker.wait(timeout=20)
    assert not list(tmp_path.glob("sinkahead-*"))
