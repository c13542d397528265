"""The worker: a process of its own that owns the model. It never waits for the API process while it has work."""

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from decoding.errors import ModelRefusedError
from decoding.options import EngineOptions
from decoding.turn import Fault, Output
from server.messages import (
    Close,
    Failed,
    Finish,
    Finished,
    FromWorker,
    NoPlace,
    Open,
    Ready,
    Refused,
    Start,
    Step,
    Stop,
    ToWorker,
    decode_to_worker,
    encode,
)

if TYPE_CHECKING:  # imported late: it brings torch, whose threads are to be set first
    from decoding.engine import Engine

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3  # in a row; a device that fails so often needs a new process
LAST_WORDS_MS = 2000


class Worker:
    """The loop around an engine: take the changes, make a step, send what came of it.

    A fault closes the sessions that it touches and is reported; then the loop goes on. What may have left the engine
    itself broken is raised, and ends the process: the API process starts another one.
    """

    def __init__(self, engine: "Engine", send: Callable[[FromWorker], None]) -> None:
        self._engine = engine
        self._send = send
        self._open: set[str] = set()
        self._failed_steps = 0

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def apply(self, change: Open | Start | Finish | Close) -> None:
        session = change.turn.session if isinstance(change, Start) else change.session
        if isinstance(change, Open):
            self._open_session(change)
        elif session in self._open:  # else it was refused or has failed, which the API process has been told
            try:
                self._change(change)
            except Exception as fault:
                logger.exception("A session failed")
                self._fail({session}, _describe(fault))

    def step(self) -> None:
        started, running = time.perf_counter(), self._engine.running
        try:
            results = self._engine.step()
        except Exception as fault:
            self._failed_steps += 1
            if self._failed_steps == MAX_FAILED_STEPS:
                raise
            logger.exception("A step failed")
            self._fail(running - self._engine.running, _describe(fault))
        else:
            self._failed_steps = 0
            outputs = [result for result in results if isinstance(result, Output)]
            self._send(Step(outputs, time.perf_counter() - started))
            for result in results:
                if isinstance(result, Fault):
                    self._fail({result.session}, result.reason)

    def _open_session(self, change: Open) -> None:
        try:
            self._engine.open(change.session, change.sinks)
        except LookupError:
            self._send(NoPlace(change.session))
        except Exception as fault:
            logger.exception("A session could not be opened")
            self._send(Failed([change.session], _describe(fault)))
        else:
            self._open.add(change.session)

    def _change(self, change: Start | Finish | Close) -> None:
        match change:
            case Start(turn):
                self._engine.start(turn)
            case Finish(session, keep):
                self._send(Finished(session, self._engine.finish(session, keep)))
            case Close(session):
                self._engine.close(session)
                self._open.remove(session)

    def _fail(self, sessions: set[str], reason: str) -> None:
        for session in sessions:
            self._engine.close(session)
        self._open -= sessions
        self._send(Failed(sorted(sessions), reason))


def run(options: EngineOptions, address: str) -> None:
    """The worker process from its first to its last instruction. `address` is where the API process listens."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all: when to end is the parent's decision
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, args=(Path(address.removeprefix("ipc://")).parent,), daemon=True).start()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)  # sending never blocks
        socket.setsockopt(zmq.LINGER, LAST_WORDS_MS)
        socket.connect(address)
        engine = _build(options, lambda message: socket.send(encode(message)))
        if engine is not None:
            _loop(Worker(engine, lambda message: socket.send(encode(message))), socket)


def _build(options: EngineOptions, send: Callable[[FromWorker], None]) -> "Engine | None":
    try:
        from decoding.build import build

        built = build(options)
    except Exception as fault:
        logger.debug("The model could not be loaded", exc_info=True)
        send(Refused(_describe(fault)))
        return None
    send(Ready(built.facts))
    return built


def _loop(worker: Worker, socket: "zmq.Socket[bytes]") -> None:
    while True:
        while not worker.has_work or socket.poll(0):
            change: ToWorker = decode_to_worker(socket.recv())
            if isinstance(change, Stop):
                return
            worker.apply(change)
        worker.step()


def _die_with_parent(folder: Path) -> None:
    """A parent that was killed can send no `Stop`, and clear up no folder; its worker would hold memory for ever."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def _describe(fault: Exception) -> str:
    """One line. A refusal's own words are made for people; any other fault is named by its type, too."""
    words = " ".join(str(fault).split()) or "no reason given"
    return words if isinstance(fault, ModelRefusedError) else f"{type(fault).__name__}: {words}"
