"""The API process's handle on one worker process: its birth, its messages, its death."""

import asyncio
import contextlib
import multiprocessing
import shutil
import signal
import tempfile
from pathlib import Path

import zmq
import zmq.asyncio

from decoding.options import EngineOptions
from server import worker
from server.logs import WORKER_STYLE, LogStyle
from server.messages import FromWorker, Stop, ToWorker, decode_from_worker, encode

STOP_SECONDS = 2.0
LAST_WORDS_MS = 100  # how long what a dead worker had sent may still be on its way


class WorkerDiedError(Exception):
    """The worker process has ended, and all that it had sent has been received."""


class WorkerProcess:
    """One worker process, which exists from the first line on, until `stop`. `Ready` or `Refused` is its first message.

    Belongs to the event loop that is running; one task receives from it.
    """

    def __init__(self, options: EngineOptions, style: LogStyle = WORKER_STYLE) -> None:
        """Raises OSError where the system has no room for another process, and leaves nothing behind."""
        self._folder = Path(tempfile.mkdtemp(prefix="sinkahead-"))  # mode 0700: nobody else may connect
        self._context = zmq.asyncio.Context()
        try:
            self._start(options, style)
        except BaseException:
            self._context.destroy()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        loop = asyncio.get_running_loop()
        self._death: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._process.sentinel, self._bury)

    def _start(self, options: EngineOptions, style: LogStyle) -> None:
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        address = f"ipc://{self._folder}/worker"
        self._socket.bind(address)
        # Spawned, not forked: a copy of this process's threads and event loop would be of no use to it.
        spawning = multiprocessing.get_context("spawn")
        self._process = spawning.Process(target=worker.run, args=(options, address, style), name="sinkahead-worker")
        # Ctrl-C reaches a terminal's whole group, and finds a new interpreter before it can say that it does not care.
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, heard or signal.SIG_DFL)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        """Never blocks. What is sent to a dead worker is lost; `receive` tells of its death."""
        sent = asyncio.ensure_future(self._socket.send(encode(message), zmq.NOBLOCK))
        if sent.done():
            sent.exception()

    async def receive(self) -> FromWorker:
        """The next message. Raises `WorkerDiedError` once there can be no more."""
        if not self._death.done():
            message: asyncio.Future[bytes] = asyncio.ensure_future(self._socket.recv())
            await asyncio.wait((message, self._death), return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return decode_from_worker(message.result())
            message.cancel()
        if await self._socket.poll(LAST_WORDS_MS):
            return decode_from_worker(await self._socket.recv())
        raise WorkerDiedError(f"the worker process ended with exit code {self._process.exitcode}")

    async def stop(self, patience: float = STOP_SECONDS) -> None:
        """End the process, by force after `patience` seconds, and remove what it left behind."""
        self.send(Stop())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._death), patience)
        self.kill()
        self._bury()
        self._context.destroy()

    def kill(self) -> None:
        """End the process now, whatever it does."""
        self._process.kill()
        self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _bury(self) -> None:
        if not self._death.done():
            asyncio.get_running_loop().remove_reader(self._process.sentinel)
            self._death.set_result(None)
