"""Snapshots of sessions' caches on the disk: when they are written, and which are removed. The worker writes them.

They only save time: without one a session is read anew from its journal.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from server.messages import MAX_SAVING
from server.scheduler import Scheduler
from server.session import Session

REST_SECONDS = 2.0  # a session that has been still for so long is saved
RETRY_SECONDS = 30.0  # after one that was not written
CLOSE_SECONDS = 20.0  # for the last ones to be written
CACHES = "caches"  # their folder, beside the journal
SUFFIX = ".cache"


class Snapshots:
    """One file for each session, replaced when a later turn has come to rest, or when the session leaves its place."""

    def __init__(self, folder: Path, scheduler: Scheduler) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._sessions: dict[str, Session] = {}  # all that are kept, by handle
        self._unsaved: dict[str, Session] = {}  # those whose last turn is in no snapshot
        self._asked: dict[str, int] = {}  # what is being written: of which turn
        self._failed: dict[str, float] = {}  # what could not be written, and when to try again
        self._heard = asyncio.Event()  # from the worker
        scheduler.on_saved, scheduler.on_parked, scheduler.on_lost = self._on_saved, self._on_parked, self._on_lost

    async def load(self, sessions: Iterable[Session]) -> None:
        """Make the folder, and remove from it what belongs to none of these."""
        self._sessions = {session.handle: session for session in sessions}
        await asyncio.to_thread(self._sweep)

    def path(self, session: Session) -> Path:
        """Where the session's snapshot is, if it has one."""
        return self._folder / f"{session.handle}{SUFFIX}"

    def size(self, session: Session) -> int:
        """Bytes of its snapshot; 0 where there is none."""
        path = self.path(session)
        return path.stat().st_size if path.exists() else 0

    def changed(self, session: Session) -> None:
        """It has had another turn."""
        self._sessions[session.handle] = self._unsaved[session.handle] = session

    async def copy(self, source: Session, target: Session) -> None:
        """The snapshot of one, if there is any, is another one's, too: a file is replaced, and never changed."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.path(target).hardlink_to, self.path(source))

    async def remove(self, session: Session) -> None:
        self._sessions.pop(session.handle, None)
        self._unsaved.pop(session.handle, None)
        self._failed.pop(session.handle, None)
        await asyncio.to_thread(self.path(session).unlink, missing_ok=True)

    def save_resting(self) -> None:
        now = time.time()
        for session in list(self._unsaved.values()):
            if now - session.conversation.last_used > REST_SECONDS:
                self._save(session)

    async def trim(self, max_bytes: int) -> None:
        """Remove files until no more is left, those of sessions used longest ago first."""
        sizes = await asyncio.to_thread(self._sizes)
        excess = sum(sizes.values()) - max_bytes
        if excess > 0:
            for session in sorted(self._sessions.values(), key=lambda one: one.conversation.last_used):
                if (size := sizes.get(self.path(session).name)) and excess > 0:
                    await asyncio.to_thread(self.path(session).unlink, missing_ok=True)
                    excess -= size

    async def close(self) -> None:
        """Save all that is not saved, as far as the worker lives to do it."""
        self._failed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._scheduler.has_worker:
                    for session in list(self._unsaved.values()):
                        self._save(session)
                    if not self._asked:
                        return
                    self._heard.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._heard.wait(), 0.2)

    def _save(self, session: Session) -> None:
        handle, turns = session.handle, session.conversation.turns
        if handle in self._asked or len(self._asked) == MAX_SAVING or self._failed.get(handle, 0) > time.monotonic():
            return
        if self._scheduler.save(handle, str(self.path(session))):
            self._asked[handle] = turns
        elif session.is_free:  # the worker has lost it
            self._unsaved.pop(handle, None)

    def _on_saved(self, handle: str, length: int | None) -> None:
        self._heard.set()
        turns, session = self._asked.pop(handle, 0), self._sessions.get(handle)
        if session is None:  # it was deleted while it was written
            (self._folder / f"{handle}{SUFFIX}").unlink(missing_ok=True)
        elif length is None:
            self._failed[handle] = time.monotonic() + RETRY_SECONDS
        elif turns == session.conversation.turns:
            self._unsaved.pop(handle, None)

    def _on_lost(self) -> None:
        """The worker is gone: what it was writing may be on the disk, or not."""
        self._heard.set()
        self._asked.clear()

    def _on_parked(self, handle: str) -> None:
        """It may be forgotten next."""
        if session := self._unsaved.get(handle):
            self._save(session)

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        return sizes

    def _sweep(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {self.path(session).name for session in self._sessions.values()}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()
