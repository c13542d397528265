"""All conversations: which one a request goes on with, where each is kept, and when it is forgotten."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from server.chain import Chain
from server.conversation import Conversation
from server.errors import session_exists, session_not_found
from server.journal import Journal
from server.reconcile import Reconciled, SessionMode, may_change, may_create, reconcile, reconcile_found
from server.record import JournalError, Key, Record, StoredMessage
from server.scheduler import Scheduler
from server.session import Session
from server.session_index import Index
from server.snapshots import Snapshots

logger = logging.getLogger(__name__)

TIDY_SECONDS = 0.5


@dataclass(frozen=True)
class Entry:
    """A session whose lock is held for a request, and what the request means for it."""

    session: Session
    reconciled: Reconciled | None = None  # None: it is new
    source: Session | None = None  # it is a copy of this one, as far as it is kept


@dataclass(frozen=True)
class Limits:
    """What all sessions together may take; those used longest ago leave first."""

    ttl: float  # seconds
    disk_bytes: int
    sessions: int


class Sessions:
    """Belongs to one event loop. `disk` keeps what outlives the process, `memory` all else."""

    def __init__(
        self,
        scheduler: Scheduler,
        fingerprint: bytes,
        limits: Limits,
        memory: Journal,
        disk: Journal | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        """fingerprint: of all that a token id depends on. snapshots: of the sessions of `disk`."""
        self._scheduler = scheduler
        self._fingerprint = fingerprint
        self._limits = limits
        self._memory, self._disk, self._snapshots = memory, disk, snapshots
        self._sessions: dict[Key, Session] = {}
        self._index = Index()
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self) -> None:
        """Recover what the disk holds."""
        if self._disk is not None:
            for stored in await self._disk.load_all():
                if stored.fingerprint == self._fingerprint:
                    session = Session(stored.conversation, self._disk, self._snapshots, kept=True)
                    self._sessions[session.key] = session
                    self._index.add(stored.conversation)
        if self._snapshots is not None:
            await self._snapshots.load([one for one in self._sessions.values() if one.snapshots])

    async def close(self) -> None:
        """Save all that the worker holds, and wait until all is written. No request may be under way."""
        if self._snapshots is not None:
            await self._snapshots.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for journal in filter(None, (self._disk, self._memory)):
            await journal.close()

    # What a request goes on with

    async def enter(self, chain: Chain, name: str | None, mode: SessionMode, *, store: bool) -> Entry:
        """The session that a request with these messages belongs to, locked for it. Raises `ApiError`.

        name: the id that the request gives. store: whether anything of it may reach the disk.
        """
        if name is None:
            return await self._find(chain, store=store)
        session = await self._named(Key(chain.namespace, name), chain, mode, store=store)
        if not session.kept:
            return Entry(session)
        reconciled = reconcile(session.conversation, chain, mode)
        if store or session.journal is self._memory:
            return Entry(session, reconciled)
        self.leave(session)  # what is on the disk stays as it is
        return await self._begin(Key(chain.namespace, uuid4().hex), named=False, store=False)

    async def _find(self, chain: Chain, *, store: bool) -> Entry:
        key = Key(chain.namespace, uuid4().hex)
        found = self._index.find(chain)
        if found is None:
            return await self._begin(key, named=False, store=store)
        session = self._sessions[Key(chain.namespace, found.conversation.id)]
        reconciled = reconcile_found(session.conversation, chain, found.num_common)
        if session.journal is not self._journal(store=store) or reconciled.rebuilds:
            return await self._begin(key, named=False, store=store)
        if may_change(session.conversation, chain, found.num_common) and not session.lock.locked():
            await self._lock(session)
            return Entry(session, reconciled)
        if session.conversation.named and session.lock.locked():  # what is copied could change in the same moment
            return await self._begin(key, named=False, store=store)
        return await self._copy(session, reconciled, key)

    async def _copy(self, source: Session, reconciled: Reconciled, key: Key) -> Entry:
        """Nobody's chat is changed by somebody else's request."""
        now, kept = time.time(), reconciled.kept_messages
        copy = self._add(source.conversation.fork(key.id, kept, now), source.journal)
        forking = source.journal.fork(source.key, key.id, kept, copy.conversation.length, now)
        await self._lock(copy)
        try:
            await forking
        except JournalError:
            logger.exception("A session could not be copied")
            self.leave(copy)
            return await self._begin(Key(key.namespace, uuid4().hex), named=False, store=source.journal is self._disk)
        except BaseException:
            self.leave(copy)
            raise
        return Entry(copy, reconciled, source)

    async def branch(self, session: Session, kept: int, reconciled: Reconciled | None) -> Entry:
        """A session for another answer to the request that this one is locked for; kept: messages that stay."""
        key = Key(session.conversation.namespace, uuid4().hex)
        if not kept:
            begun = await self._begin(key, named=False, store=session.journal is self._disk)
            return Entry(begun.session, None, session)
        now = time.time()
        copy = self._add(session.conversation.fork(key.id, kept, now), session.journal)
        await self._lock(copy)
        try:
            await session.journal.fork(session.key, key.id, kept, copy.conversation.length, now)
        except BaseException:
            self.leave(copy)
            raise
        return Entry(copy, reconciled, session)

    async def _named(self, key: Key, chain: Chain, mode: SessionMode, *, store: bool) -> Session:
        while True:
            if session := self._sessions.get(key):
                await session.lock.acquire()
                if self._sessions.get(key) is session:
                    session.conversation.busy = session.conversation.named = True
                    return session
                session.lock.release()  # it was forgotten meanwhile
                continue
            journals = filter(None, (self._disk, self._memory))
            gone = [await journal.is_gone(key) for journal in journals]
            if key not in self._sessions:
                if not may_create(chain, mode, any(gone)):
                    raise session_not_found(key.id)
                return (await self._begin(key, named=True, store=store)).session

    async def _begin(self, key: Key, *, named: bool, store: bool) -> Entry:
        now = time.time()
        conversation = Conversation(key.id, named, Chain(key.namespace), 0, now, now)
        session = self._add(conversation, self._journal(store=store))
        await self._lock(session)
        return Entry(session)

    def _journal(self, *, store: bool) -> Journal:
        return self._disk if store and self._disk is not None else self._memory

    def _add(self, conversation: Conversation, journal: Journal) -> Session:
        session = Session(conversation, journal, self._snapshots if journal is self._disk else None)
        self._sessions[session.key] = session
        return session

    async def _lock(self, session: Session) -> None:
        """One whose lock is free: nothing else happens before it is taken."""
        await session.lock.acquire()
        session.conversation.busy = True

    def leave(self, session: Session, *, shorter: bool = False) -> None:
        """Unlocks it. One that has kept nothing of its request is as before, and forgotten if it is new.

        shorter: the request has rolled the worker's session back behind what is kept, unless it was kept itself.
        """
        session.conversation.busy = False
        if not session.kept and self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self.background(self._erase(session, tombstone=False))
        if shorter or self._sessions.get(session.key) is not session:
            self._scheduler.drop(session.handle)
        session.lock.release()

    # What is remembered

    async def keep(
        self, session: Session, kept: int, new: Sequence[StoredMessage], start: int, ids: Sequence[int], sinks: int
    ) -> None:
        """A turn has ended: behind the `kept` first messages come these, behind the `start` first ids these.

        Returns when it can no longer be lost. Nothing is kept of a session that was deleted meanwhile.
        """
        if self._sessions.get(session.key) is not session:
            return
        conversation, now = session.conversation, time.time()
        if conversation.named and kept < conversation.num_messages and session.kept:
            await self._keep_branch(session, now)
        record = Record(
            key=session.key,
            named=conversation.named,
            fingerprint=self._fingerprint,
            tools=conversation.chain.tools,
            sinks=sinks,
            kept_messages=kept,
            messages=new,
            kept_ids=start,
            ids=ids,
            created=conversation.created,
            now=now,
        )
        try:
            await session.journal.commit(record)
        except JournalError:
            logger.exception("A turn could not be kept; the session goes on from before it")
            return
        prompt_end = new[-2].position if len(new) > 1 else None
        parts = [(new[:-1], prompt_end), (new[-1:], start + len(ids))] if new else []
        if session.kept:
            self._index.truncate(conversation, kept)
        else:
            conversation.truncate(kept)
        for told, length in parts:
            if told:
                assert length is not None
                chain = Chain.of(b"", [one.message for one in told])
                change = self._index.extend if session.kept else _extend
                change(conversation, chain.roles, chain.digests, length)
        conversation.turns += bool(new)
        conversation.sinks = sinks
        conversation.last_used = now
        if not session.kept:
            self._index.add(conversation)
        session.kept = True
        if session.snapshots is not None:
            session.snapshots.changed(session)

    async def _keep_branch(self, session: Session, now: float) -> None:
        """What an edit is about to cut off becomes a session that can be found."""
        conversation = session.conversation
        branch = conversation.fork(uuid4().hex, conversation.num_messages, now)
        try:
            await session.journal.fork(session.key, branch.id, branch.num_messages, branch.length, now)
        except JournalError:
            logger.exception("An edited conversation's old branch could not be kept")
            return
        self._add(branch, session.journal).kept = True
        self._index.add(branch)

    # What clients ask about them

    def get(self, key: Key) -> Session:
        """Raises `ApiError`."""
        session = self._sessions.get(key)
        if session is None or not session.kept:
            raise session_not_found(key.id)
        return session

    def listed(self, namespace: bytes) -> list[Session]:
        """The caller's own, those used last first."""
        own = [one for one in self._sessions.values() if one.conversation.namespace == namespace and one.kept]
        return sorted(own, key=lambda session: -session.conversation.last_used)

    async def delete(self, session: Session, *, tombstone: bool = True) -> None:
        """Returns when nothing of it is left. A request that it runs goes on, and is not kept."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            if session.kept:
                self._index.remove(session.conversation)
            if not session.lock.locked():
                self._scheduler.drop(session.handle)
            await self._erase(session, tombstone=tombstone)

    async def _erase(self, session: Session, *, tombstone: bool) -> None:
        await session.journal.remove([session.key], time.time(), tombstone=tombstone)
        if session.snapshots is not None:
            await session.snapshots.remove(session)

    async def create(self, key: Key) -> Session:
        """An empty one, which anybody who knows its id can go on with. Raises `ApiError`."""
        if key in self._sessions:
            raise session_exists(key.id)
        session = (await self._begin(key, named=True, store=True)).session
        try:
            await self.keep(session, 0, [], 0, [], 0)
        finally:
            self.leave(session)
        return session

    async def fork(self, session: Session, name: str | None) -> Session:
        """A copy of all that is kept, under a name that is new. Raises `ApiError`."""
        now, conversation = time.time(), session.conversation
        key = Key(conversation.namespace, name or uuid4().hex)
        if key in self._sessions:
            raise session_exists(key.id)
        fork = conversation.fork(key.id, conversation.num_messages, now)
        fork.named = True
        copy = self._add(fork, session.journal)
        await self._lock(copy)
        try:
            await session.journal.fork(session.key, fork.id, fork.num_messages, fork.length, now)
            copy.kept = True
            self._index.add(fork)
        finally:
            self.leave(copy)
        return copy

    # Housekeeping

    async def tidy(self) -> None:
        """Until cancelled: saves what has come to rest, forgets what is old or too much."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            try:
                if self._snapshots is not None:
                    self._snapshots.save_resting()
                    await self._snapshots.trim()
                await self._expire()
            except Exception:  # of the disk, as a rule: it may pass
                logger.exception("Sessions could not be tidied up")

    async def _expire(self) -> None:
        keys: set[Key] = set()
        for journal in filter(None, (self._disk, self._memory)):
            keys.update(await journal.expired(time.time(), self._limits.ttl, self._limits.disk_bytes))
        idle = [one for one in self._sessions.values() if one.kept and not one.lock.locked()]
        idle.sort(key=lambda session: session.conversation.last_used)
        surplus = idle[: max(0, len(self._sessions) - self._limits.sessions)]
        for session in dict.fromkeys([*surplus, *(one for one in idle if one.key in keys)]):
            await self.delete(session)

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Goes on whether or not anybody waits; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _extend(conversation: Conversation, roles: Sequence[str], digests: Sequence[bytes], length: int) -> None:
    """Of one that is not listed."""
    conversation.extend(roles, digests, length)
