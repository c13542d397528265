"""Keeps one worker process running: starts it, hands its messages on, starts another one when it dies."""

import asyncio
import logging
import time

import zmq

from decoding.options import EngineFacts, EngineOptions
from server.logs import WORKER_STYLE, LogStyle
from server.messages import Ready, Refused
from server.scheduler import Scheduler
from server.worker_process import STOP_SECONDS, WorkerDiedError, WorkerProcess

logger = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 0.25
LONGEST_DELAY_SECONDS = 15.0
HEALTHY_SECONDS = 60.0  # a worker that lived so long owes nothing to the deaths before


class LoadError(Exception):
    """The worker could not load the model; the message says why, in one line."""


class Supervisor:
    """`load` starts the first worker; its failure is final. `run` then serves, and replaces each worker that dies, or
    that has work and sends nothing for `stall_seconds` (0: however long it takes).
    """

    def __init__(
        self, options: EngineOptions, scheduler: Scheduler, stall_seconds: float, style: LogStyle = WORKER_STYLE
    ) -> None:
        """style: of the worker's log."""
        self._options = options
        self._style = style
        self._scheduler = scheduler
        self._stall_seconds = stall_seconds
        self._heard = 0.0  # when the worker last sent something, or owed nothing
        self._worker: WorkerProcess | None = None
        self._serving = False  # the worker is ready, and takes messages

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker else None

    async def load(self) -> EngineFacts:
        """Start a worker and wait until it has loaded the model. Raises `LoadError`."""
        try:
            self._worker = WorkerProcess(self._options, self._style)
        except (OSError, zmq.ZMQError) as error:
            raise LoadError(f"no worker can be started: {error}") from None
        try:
            message = await self._worker.receive()
        except WorkerDiedError as death:
            raise LoadError(f"{death} while it loaded the model") from None
        if isinstance(message, Refused):
            raise LoadError(message.reason)
        assert isinstance(message, Ready)
        self._serving = True
        self._scheduler.worker_ready(message.facts, self._worker.send)
        return message.facts

    async def run(self) -> None:
        """Until cancelled."""
        delay = 0.0
        while True:
            ready_at = time.monotonic()
            watching = asyncio.create_task(self._watch())
            try:
                await self._hand_on()
            finally:
                watching.cancel()
            delay = 0.0 if time.monotonic() - ready_at > HEALTHY_SECONDS else _longer(delay)
            self._scheduler.worker_lost("its worker died and is being restarted")
            while not await self._replace(delay):
                delay = _longer(delay)
                self._scheduler.worker_lost(f"its worker died and cannot be restarted; next attempt in {delay:g} s")

    async def stop(self) -> None:
        """End the worker, in order if it serves, by force if it is loading. `run` must have been cancelled."""
        if self._worker is not None:
            await self._worker.stop(STOP_SECONDS if self._serving else 0)

    def kill(self) -> None:
        """For an exit at once."""
        if self._worker is not None:
            self._worker.kill()

    async def _hand_on(self) -> None:
        """From the worker to the scheduler, until the worker dies."""
        assert self._worker is not None
        try:
            while True:
                message = await self._worker.receive()
                assert not isinstance(message, Ready | Refused)
                self._heard = time.monotonic()
                self._scheduler.receive(message)
        except WorkerDiedError as death:
            self._serving = False
            logger.error("%s", str(death).capitalize())

    async def _watch(self) -> None:
        """Ends a worker that stands still: its device hangs, or it was stopped. Its death is then handled as any."""
        if not self._stall_seconds:
            return
        self._heard = time.monotonic()
        while time.monotonic() - self._heard < self._stall_seconds:
            await asyncio.sleep(min(1.0, self._stall_seconds / 4))
            if not self._scheduler.awaits_worker:
                self._heard = time.monotonic()
        logger.error("The worker has work and has sent nothing for %g s; it is replaced", self._stall_seconds)
        self.kill()

    async def _replace(self, delay: float) -> bool:
        assert self._worker is not None
        await self._worker.stop(patience=0)
        await asyncio.sleep(delay)
        try:
            await self.load()
        except LoadError as failure:
            logger.error("The worker cannot be restarted: %s", failure)
            return False
        return True


def _longer(delay: float) -> float:
    return min(max(FIRST_DELAY_SECONDS, 2 * delay), LONGEST_DELAY_SECONDS)
