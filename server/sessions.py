"""All conversations: which one a request goes on with, and where each is kept."""

import asyncio
import logging
import time
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from server.chain import Chain
from server.conversation import Conversation
from server.errors import foreign_session, not_stored, private_session, session_exists, session_not_found
from server.journal import Journal
from server.reconcile import (
    Reconciled,
    SessionMode,
    common_messages,
    may_change,
    may_create,
    reconcile,
    reconcile_found,
)
from server.record import Branch, JournalError, Key, StoredMessage
from server.scheduler import Scheduler
from server.session import Entry, Session
from server.session_index import Index
from server.snapshots import Snapshots

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Sessions:
    """Belongs to one event loop. `disk` keeps what outlives the process, `memory` all else."""

    def __init__(
        self,
        scheduler: Scheduler,
        fingerprint: bytes,
        memory: Journal,
        disk: Journal | None = None,
        snapshots: Snapshots | None = None,
        *,
        grows: bool = True,
    ) -> None:
        """fingerprint: of all that a token id depends on. snapshots: of the sessions of `disk`. grows: whether a turn
        that runs leaves the tokens before it as they are (`ChatTemplate.grows`).
        """
        self._grows = grows
        self._scheduler = scheduler
        self._fingerprint = fingerprint
        self._memory, self._disk, self._snapshots = memory, disk, snapshots
        self._sessions: dict[Key, Session] = {}
        self._index = Index()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load(self) -> None:
        """Recover what the disk holds."""
        if self._disk is not None:
            unfinished = []
            for stored in await self._disk.load_all():
                if stored.conversation.is_unfinished:
                    unfinished.append(Key(stored.conversation.namespace, stored.conversation.id))
                    continue
                if stored.fingerprint != self._fingerprint:
                    stored.conversation.forget_ids()
                session = Session(stored.conversation, self._disk, self._snapshots, kept=True, written=True)
                self._sessions[session.key] = session
                self._index.add(stored.conversation)
            if unfinished:
                await self._disk.remove(unfinished, time.time(), tombstone=False)
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

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

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
        if session.journal is not self._journal(store=store) and session.journal is self._memory:
            self.leave(session)
            raise private_session(session.key.id)
        reconciled = reconcile(session.conversation, chain, mode)
        if session.journal is not self._memory and not store:  # what is on the disk stays as it is
            try:
                return await self._carry_over(session, reconciled)
            finally:
                self.leave(session)
        if session.kept and reconciled.kept_messages < session.conversation.num_messages:
            self._branch_off(session)
        return Entry(session, reconciled)

    async def _find(self, chain: Chain, *, store: bool) -> Entry:
        found = self._index.find(chain)
        if found is None:
            return await self._begin(self._new_key(chain.namespace), named=False, store=store)
        session = self._sessions[Key(chain.namespace, found.conversation.id)]
        return await self._go_on(session, chain, found.num_common, store=store)

    async def follow(self, source: Session, chain: Chain, *, store: bool) -> Entry:
        """As `enter` without a name, for a request that goes on from some first messages of this session."""
        if not store and source.journal is not self._memory:
            await source.take()
            try:
                common = common_messages(source.conversation.chain, chain)
                reconciled = reconcile_found(source.conversation, chain, common)
                if self._sessions.get(source.key) is source and not reconciled.rebuilds:
                    return await self._carry_over(source, reconciled)
            finally:
                self.leave(source)
        elif self._sessions.get(source.key) is source:
            common = common_messages(source.conversation.chain, chain)
            return await self._go_on(source, chain, common, store=store)
        return await self._find(chain, store=store)

    async def _go_on(self, session: Session, chain: Chain, num_common: int, *, store: bool) -> Entry:
        """In this session, if it is all in the request and nobody's name; or in a copy, or anew."""
        reconciled = reconcile_found(session.conversation, chain, num_common)
        if session.journal is self._journal(store=store) and not reconciled.rebuilds:
            if may_change(session.conversation, chain, num_common) and session.is_free:
                await session.take()
                return Entry(session, reconciled)
            if session.is_free or (self._grows and not session.conversation.named):  # else it may be other than it was
                try:
                    return await self._copy(session, reconciled.kept_messages, reconciled)
                except JournalError:
                    logger.exception("A session could not be copied: the request is read anew")
        return await self._begin(self._new_key(chain.namespace), named=False, store=store)

    async def branch(self, session: Session, kept: int, reconciled: Reconciled | None, keep: int) -> Entry:
        """A session for another answer to the request that this one is locked for.

        kept: stored messages that stay; keep: tokens that the worker has of the kept ones and of the request's.
        """
        if kept:
            entry = await self._copy(session, kept, reconciled, keep)
        else:
            key = self._new_key(session.conversation.namespace)
            entry = await self._begin(key, named=False, store=session.journal is self._disk)
            self._scheduler.copy(entry.session.handle, session.handle, keep)
        return Entry(entry.session, entry.reconciled, session)

    async def _copy(self, source: Session, kept: int, reconciled: Reconciled | None, keep: int | None = None) -> Entry:
        """Of the first messages of another session: nobody's chat is changed by somebody else's request.

        All is asked for before anything else can happen, and journal and worker do what they are asked in order: so it
        is a copy of what the source is now.
        """
        now = time.time()
        conversation = source.conversation.fork(self._new_key(source.conversation.namespace).id, kept, now)
        copy = self._add(conversation, source.journal)
        await copy.take()
        self._scheduler.copy(copy.handle, source.handle, conversation.length if keep is None else keep)
        copy.written = True
        try:
            await source.journal.fork(source.key, conversation.id, kept, conversation.length, now)
        except BaseException:
            self.leave(copy)
            raise
        return Entry(copy, reconciled, source)

    async def _carry_over(self, source: Session, reconciled: Reconciled) -> Entry:
        """A copy in memory of a session of the disk, which is locked."""
        now, conversation = time.time(), source.conversation
        kept = conversation.num_messages if reconciled.rebuilds else reconciled.kept_messages
        copied = conversation.fork(self._new_key(conversation.namespace).id, kept, now)
        messages = await source.journal.messages(source.key) or []
        ids = await source.journal.ids(source.key) or array("i")
        copy = self._add(copied, self._memory)
        await copy.take()
        self._scheduler.copy(copy.handle, source.handle, copied.length)
        told = [StoredMessage(*pair) for pair in zip(messages[:kept], copied.positions, strict=True)]
        try:
            tools = copied.chain.tools
            kept_ids = ids[: copied.length]
            await self._memory.commit(copy.record(self._fingerprint, 0, told, 0, kept_ids, copied.sinks, now, tools))
        except BaseException:
            self.leave(copy)
            raise
        return Entry(copy, reconciled, source)

    def _branch_off(self, session: Session) -> None:
        """What an edit of a named session is about to cut off is copied; it is kept when the edit is."""
        conversation = session.conversation
        if not conversation.is_foreign:
            id_ = self._new_key(conversation.namespace).id
            session.branch = conversation.fork(id_, conversation.num_messages, time.time())
            self._scheduler.copy(session.branch.handle, session.handle, conversation.length)

    def _new_key(self, namespace: bytes) -> Key:
        return Key(namespace, uuid4().hex)

    async def _named(self, key: Key, chain: Chain, mode: SessionMode, *, store: bool) -> Session:
        while True:
            if session := self._sessions.get(key):
                await session.take()
                if self._sessions.get(key) is session:
                    session.conversation.named = True
                    return session
                session.release()  # it was forgotten meanwhile
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
        await session.take()
        return Entry(session)

    def _journal(self, *, store: bool) -> Journal:
        return self._disk if store and self._disk is not None else self._memory

    def _add(self, conversation: Conversation, journal: Journal) -> Session:
        session = Session(conversation, journal, self._snapshots if journal is self._disk else None)
        self._sessions[session.key] = session
        return session

    def leave(self, session: Session, *, shorter: bool = False) -> None:
        """Unlocks it. One that has kept nothing of its request is as before, and forgotten if it is new.

        shorter: the request has rolled the worker's session back behind what is kept, unless it was kept itself.
        """
        if session.branch is not None:
            self._scheduler.drop(session.branch.handle)
            session.branch = None
        if not session.kept and self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self.background(self._erase(session, tombstone=False))
        if shorter or self._sessions.get(session.key) is not session:
            self._scheduler.drop(session.handle)
        session.release()

    # What is remembered

    async def keep(
        self,
        session: Session,
        kept: int,
        new: Sequence[StoredMessage],
        start: int,
        ids: Sequence[int],
        sinks: int,
        tools: bytes = b"",
    ) -> bool:
        """A turn has ended: behind the `kept` first messages come these, behind the `start` first ids these.

        tools: what the conversation has of them now; where they are others than before, nothing of it is kept.

        Returns when it can no longer be lost; or False where it could not be kept, since the session was deleted, or
        the disk does not take it: then all is as it was before.
        """
        conversation, now, branch = session.conversation, time.time(), session.branch
        if self._sessions.get(session.key) is not session:
            return False
        assert tools == conversation.chain.tools or not kept
        record = session.record(self._fingerprint, kept, new, start, ids, sinks, now, tools)
        session.branch, session.written = None, True
        cut_off = Branch(branch.id, branch.num_messages, branch.length, branch.created) if branch else None
        try:
            await session.journal.commit(record, cut_off)
        except JournalError:
            logger.exception("A turn could not be kept; the session goes on from before it")
            session.branch, session.written = branch, session.kept
            return False
        if self._sessions.get(session.key) is not session:
            if branch is not None:
                self._scheduler.drop(branch.handle)
                await session.journal.remove([Key(branch.namespace, branch.id)], now, tombstone=False)
            return False
        if branch is not None:
            self._list(self._add(branch, session.journal))
        self._change(session, kept, new, start + len(ids), tools)
        conversation.turns += bool(new)
        conversation.sinks = sinks
        conversation.last_used = now
        self._list(session)
        return True

    def _change(self, session: Session, kept: int, new: Sequence[StoredMessage], length: int, tools: bytes) -> None:
        """As the journal has it."""
        conversation = session.conversation
        if session.kept:
            self._index.truncate(conversation, kept)
        else:
            conversation.truncate(kept)
        if tools != conversation.chain.tools:
            conversation.chain = Chain(conversation.namespace, tools)
        prompt_end = new[-2].position if len(new) > 1 else None
        for told, end in ((new[:-1], prompt_end), (new[-1:], length)):
            if told:
                assert end is not None
                chain = Chain.of(b"", [one.message for one in told])
                change = self._index.extend if session.kept else _extend
                change(conversation, chain.roles, chain.digests, end)

    def _list(self, session: Session) -> None:
        """It can be found from now on, and its cache is worth saving."""
        if not session.kept:
            self._index.add(session.conversation)
        session.kept = session.written = True
        if session.snapshots is not None:
            session.snapshots.changed(session)

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
        """Returns when nothing of it is left. A request that it runs goes on, and is not kept. Raises `ApiError`."""
        if self._sessions.get(session.key) is not session:
            return
        self._unlist(session)
        try:
            await self._erase(session, tombstone=tombstone)
        except (JournalError, OSError) as error:
            logger.exception("A session could not be removed")
            if self._sessions.setdefault(session.key, session) is session and session.kept:
                self._index.add(session.conversation)
            raise not_stored() from error

    def _unlist(self, session: Session) -> None:
        del self._sessions[session.key]
        if session.kept:
            self._index.remove(session.conversation)
        if session.is_free:
            self._scheduler.drop(session.handle)

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
            if not await self.keep(session, 0, [], 0, [], 0):
                raise not_stored()
        finally:
            self.leave(session)
        return session

    async def fork(self, session: Session, name: str | None) -> Session:
        """A copy of all that is kept, under a name that is new, once no request changes it. Raises `ApiError`."""
        key = Key(session.conversation.namespace, name or uuid4().hex)
        await session.take()
        try:
            if self._sessions.get(session.key) is not session:
                raise session_not_found(session.key.id)
            if key in self._sessions:
                raise session_exists(key.id)
            if session.conversation.is_foreign:
                raise foreign_session(session.key.id)
            return await self._fork(session, key)
        finally:
            self.leave(session)

    async def _fork(self, session: Session, key: Key) -> Session:
        now, num_messages = time.time(), session.conversation.num_messages
        fork = session.conversation.fork(key.id, num_messages, now, named=True)
        copy = self._add(fork, session.journal)
        await copy.take()
        self._scheduler.copy(copy.handle, session.handle, fork.length)
        copy.written = True
        try:
            if copy.snapshots is not None:
                await copy.snapshots.copy(session, copy)
            await session.journal.fork(session.key, fork.id, num_messages, fork.length, now, named=True)
            if self._sessions.get(key) is copy:
                self._list(copy)
        except JournalError as error:
            logger.exception("A session could not be copied")
            raise not_stored() from error
        finally:
            self.leave(copy)
        return copy

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Goes on whether or not anybody waits; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _extend(conversation: Conversation, roles: Sequence[str], digests: Sequence[bytes], length: int) -> None:
    """Of one that is not listed."""
    conversation.extend(roles, digests, length)
