"""Sessions on the disk, written off the event loop by one thread, many turns in one transaction."""

import asyncio
import logging
import sqlite3
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar

from server.journal_file import MAX_TOMBSTONES, JournalFile
from server.record import Branch, JournalError, Key, Record, Stored

logger = logging.getLogger(__name__)

MAX_GROUP = 64  # jobs in one transaction: the first of them waits for the last one
T = TypeVar("T")


@dataclass(eq=False)
class _Job:
    """Something to do with the file, on the writer's thread."""

    run: Callable[[JournalFile], Any]
    scrubs: bool = False  # is done only when what it deleted is in no file any more
    alone: bool = False  # works outside a transaction
    done: "Future[Any]" = field(default_factory=Future)


class Journal:
    """Each method returns when what it did is written, so that the end of the process at any moment loses none of it.

    Jobs are done in the order in which they were asked for, even where nobody waits for them any more. All raise
    `JournalError`, and then nothing of the job is written.
    """

    def __init__(self, folder: Path | None, max_tombstones: int = MAX_TOMBSTONES) -> None:
        self._folder = folder
        self._max_tombstones = max_tombstones
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # None: the end
        self._opened: Future[None] = Future()
        self._closed = False
        self._thread = Thread(target=self._write, name="journal", daemon=True)

    @classmethod
    async def open(cls, folder: Path | None, max_tombstones: int = MAX_TOMBSTONES) -> Self:
        """None: all is kept in memory, and lost at the end.

        Reads the whole file once to see whether it is sound; about a second per GB that the system has in memory."""
        journal = cls(folder, max_tombstones)
        journal._thread.start()
        await asyncio.wrap_future(journal._opened)
        return journal

    async def close(self) -> None:
        """What was asked for before is done first."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def commit(self, record: Record, branch: Branch | None = None) -> None:
        """A turn that has ended; before it, what it cuts off becomes the branch."""

        def run(file: JournalFile) -> None:
            if branch is not None:
                file.fork(record.key, *branch)
            file.record(record)

        await self._do(_Job(run))

    async def fork(
        self, source: Key, id_: str, num_messages: int, num_ids: int, now: float, *, named: bool = False
    ) -> None:
        """As `JournalFile.fork`."""
        await self._do(_Job(lambda file: file.fork(source, id_, num_messages, num_ids, now, named=named)))

    async def touch(self, key: Key, now: float) -> None:
        """Let a session count as used at this time."""
        await self._do(_Job(lambda file: file.touch(key, now)))

    async def remove(self, keys: Sequence[Key], now: float, *, tombstone: bool = True) -> int:
        """Delete sessions; returns how many there were. Their texts are in no file any more when this returns.

        Turns wait meanwhile, so of many sessions some hundred at a time. The file shrinks afterwards, in pieces,
        between other jobs. `tombstone=False` is for sessions of which no client knows.
        """

        def run(file: JournalFile) -> int:
            return sum(file.remove(key, now, tombstone=tombstone) for key in keys)

        num_removed: int = await self._do(_Job(run, scrubs=True))
        if num_removed and not self._closed:
            self._jobs.put(self._shrinking(Future()))
        return num_removed

    async def shrink(self) -> None:
        """Returns when the file holds no free pages."""
        done: Future[None] = Future()
        self._put(self._shrinking(done))
        await asyncio.shield(asyncio.wrap_future(done))

    async def load_all(self) -> list[Stored]:
        """As `JournalFile.load_all`."""
        return await self._read(JournalFile.load_all)

    async def ids(self, key: Key) -> "array[int] | None":
        """As `JournalFile.ids`."""
        return await self._read(lambda file: file.ids(key))

    async def messages(self, key: Key) -> list[dict[str, Any]] | None:
        """As `JournalFile.messages`."""
        return await self._read(lambda file: file.messages(key))

    async def is_gone(self, key: Key) -> bool:
        """As `JournalFile.is_gone`."""
        return await self._read(lambda file: file.is_gone(key))

    async def size(self) -> int:
        """As `JournalFile.size`."""
        return await self._read(JournalFile.size)

    async def expired(self, now: float, ttl: float, max_bytes: int) -> list[Key]:
        """As `JournalFile.expired`."""
        return await self._read(lambda file: file.expired(now, ttl, max_bytes))

    async def _read(self, run: Callable[[JournalFile], T]) -> T:
        result: T = await self._do(_Job(run))
        return result

    async def _do(self, job: _Job) -> Any:
        self._put(job)
        return await asyncio.shield(asyncio.wrap_future(job.done))

    def _put(self, job: _Job) -> None:
        if self._closed:
            raise JournalError("the journal is closed")
        self._jobs.put(job)

    def _shrinking(self, done: "Future[None]") -> _Job:
        """A piece at a time: the next one waits behind the jobs that have come meanwhile."""

        def run(file: JournalFile) -> None:
            if file.shrink() and not self._closed:
                self._jobs.put(self._shrinking(done))
            else:
                done.set_result(None)

        def fail(ended: "Future[None]") -> None:
            if error := ended.exception():
                done.set_exception(error)

        job = _Job(run, alone=True)
        job.done.add_done_callback(fail)
        return job

    # The writer's thread

    def _write(self) -> None:
        try:
            file = JournalFile(self._folder, self._max_tombstones)
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        try:
            while self._step(file):
                pass
        finally:
            self._closed = True
            while not self._jobs.empty():
                if job := self._jobs.get():
                    job.done.set_exception(JournalError("the journal is closed"))
            file.close()

    def _step(self, file: JournalFile) -> bool:
        """Take what waits, do it in one transaction, tell who waits for it. False at the end."""
        jobs, last = self._take()
        group: list[_Job] = []
        for job in jobs:
            if job.alone:
                _run_group(file, group)
                group = []
                _run_alone(file, job)
            else:
                group.append(job)
        _run_group(file, group)
        return not last

    def _take(self) -> tuple[list[_Job], bool]:
        jobs: list[_Job] = []
        try:
            while len(jobs) < MAX_GROUP:
                job = self._jobs.get(block=not jobs)
                if job is None:
                    return jobs, True
                jobs.append(job)
        except Empty:
            pass
        return jobs, False


def _run_group(file: JournalFile, jobs: Sequence[_Job]) -> None:
    if not jobs:
        return
    results: list[tuple[_Job, Any]] = []
    try:
        file.begin()
        for job in jobs:
            file.savepoint()
            try:
                results.append((job, job.run(file)))
            except Exception as error:
                if type(error) in (sqlite3.DatabaseError, sqlite3.OperationalError):
                    raise  # the file's fault, and no other job will fare better
                file.release(undo=True)
                results.append((job, _as_journal_error(error)))
            else:
                file.release()
        file.commit()
    except Exception as error:
        _fail(file, jobs, error)
        return
    if any(job.scrubs for job in jobs):
        _scrub(file)
    for job, result in results:
        if isinstance(result, Exception):
            job.done.set_exception(result)
        else:
            job.done.set_result(result)


def _scrub(file: JournalFile) -> None:
    try:
        scrubbed = file.scrub()
    except sqlite3.Error:
        logger.exception("The journal's WAL cannot be emptied")
    else:
        if not scrubbed:
            logger.warning("Another process reads the journal: removed texts stay in its WAL until that ends.")


def _run_alone(file: JournalFile, job: _Job) -> None:
    try:
        job.done.set_result(job.run(file))
    except Exception as error:
        _fail(file, [job], error)


def _fail(file: JournalFile, jobs: Sequence[_Job], error: Exception) -> None:
    """Nothing of the transaction is written."""
    logger.error("The journal cannot be used: %s", error)
    try:
        file.roll_back()
    except sqlite3.Error:
        logger.exception("The journal cannot be rolled back")
    for job in jobs:
        job.done.set_exception(_as_journal_error(error))


def _as_journal_error(error: Exception) -> JournalError:
    if isinstance(error, JournalError):
        return error
    failure = JournalError(f"the journal cannot be used: {error}")
    failure.__cause__ = error
    return failure
