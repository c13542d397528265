"""The worker: a process of its own that owns the model. It never waits for the API process while it has work."""

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from decoding.errors import ModelRefusedError, NoPlaceError
from decoding.options import EngineOptions
from decoding.turn import Fault, Output
from server.logs import WORKER_STYLE, LogStyle, set_up
from server.messages import (
    MAX_SAVING,
    Change,
    Close,
    Failed,
    Finish,
    Finished,
    Fork,
    FromWorker,
    NoPlace,
    Open,
    Park,
    Parked,
    Ready,
    Refused,
    Resume,
    Save,
    Saved,
    Start,
    Started,
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
SAVING_MS = 20  # between two looks at them, where there is nothing else to do
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
        self._ended: float | None = None  # when the last step ended, where work was left
        self._writer = ThreadPoolExecutor(1, "snapshots")
        self._saving: list[tuple[str, Future[int]]] = []

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def is_saving(self) -> bool:
        """Whether snapshots are being written, of which `report_saved` will tell."""
        return bool(self._saving)

    def apply(self, change: Change) -> None:
        session = change.turn.session if isinstance(change, Start) else change.session
        if isinstance(change, Open | Fork):
            self._enter(session, lambda: self._take(change))
        elif session not in self._open:  # it was refused or has failed, which the API process has been told
            return
        elif isinstance(change, Resume):
            self._enter(session, lambda: self._take(change))
        else:
            try:
                self._change(change)
            except Exception as fault:
                logger.exception("A session failed")
                self._fail({session}, _describe(fault))

    def step(self) -> None:
        started, running = time.perf_counter(), self._engine.running
        idle = 0.0 if self._ended is None else started - self._ended
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
            self._send(Step(outputs, time.perf_counter() - started, idle))
            for result in results:
                if isinstance(result, Fault):
                    self._fail({result.session}, result.reason)
        self._ended = time.perf_counter() if self.has_work else None
        self.report_saved()

    def report_saved(self) -> None:
        """Tell of the snapshots that are on the disk by now."""
        while self._saving and self._saving[0][1].done():
            session, written = self._saving.pop(0)
            if fault := written.exception():
                logger.error("A snapshot could not be written: %s", fault)
            self._send(Saved(session, None if fault else written.result()))

    def close(self) -> None:
        """Returns when all snapshots are written."""
        self._writer.shutdown()

    def _enter(self, session: str, take: Callable[[], object]) -> None:
        try:
            take()
        except NoPlaceError:
            self._send(NoPlace(session))
        except Exception as fault:
            logger.exception("A session could not be opened")
            self._fail({session} & self._open, _describe(fault), {session})
        else:
            self._open.add(session)

    def _take(self, change: Open | Fork | Resume) -> None:
        match change:
            case Open():
                path = None if change.snapshot is None else Path(change.snapshot)
                self._engine.open(change.session, change.sinks, change.ids, path, change.namespace)
            case Fork(session, source, keep):
                self._engine.fork(source, session, keep)
            case Resume(session):
                self._engine.resume(session)

    def _change(self, change: Change) -> None:
        match change:
            case Start(turn, keep, snapshot):
                self._engine.start(turn, keep, None if snapshot is None else Path(snapshot))
                self._send(Started(turn.session, *self._engine.prompt(turn.session)))
            case Finish(session, keep):
                self._send(Finished(session, self._engine.finish(session, keep)))
            case Park(session):
                self._send(Parked(session, self._engine.park(session)))
            case Save(session, path):
                self._save(session, Path(path))
            case Close(session):
                self._engine.close(session)
                self._open.remove(session)

    def _save(self, session: str, path: Path) -> None:
        """The copy is made now, the file in a thread of its own."""
        if len(self._saving) == MAX_SAVING:  # the disk does not keep up, and each copy takes memory
            self._send(Saved(session, None))
            return
        snapshot = self._engine.snapshot(session)

        def write() -> int:
            snapshot.write(path)
            return int(snapshot.packed.length)

        self._saving.append((session, self._writer.submit(write)))

    def _fail(self, sessions: set[str], reason: str, also: Collection[str] = ()) -> None:
        """Close these, and tell of them and of others that are not open."""
        for session in sessions:
            self._engine.close(session)
        self._open -= sessions
        self._send(Failed(sorted(sessions.union(also)), reason))


def run(options: EngineOptions, address: str, style: LogStyle = WORKER_STYLE) -> None:
    """The worker process from its first to its last instruction. `address` is where the API process listens."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all: when to end is the parent's decision
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, args=(Path(address.removeprefix("ipc://")).parent,), daemon=True).start()
    set_up(style)
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)  # sending never blocks
        socket.setsockopt(zmq.LINGER, LAST_WORDS_MS)
        socket.connect(address)
        engine = _build(options, lambda message: socket.send(encode(message)))
        if engine is not None:
            worker = Worker(engine, lambda message: socket.send(encode(message)))
            _loop(worker, socket)
            worker.close()
    os._exit(0)  # all is said and written; to take the model apart object by object takes seconds


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
            while worker.is_saving and not socket.poll(SAVING_MS):
                worker.report_saved()
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
