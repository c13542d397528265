"""One conversation of a client, and where it is kept."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server.conversation import Conversation
from server.journal import Journal
from server.reconcile import Reconciled
from server.record import Key, Record, StoredMessage

if TYPE_CHECKING:
    from server.snapshots import Snapshots


@dataclass(eq=False)
class Session:
    """One request at a time has its lock; the others wait in order."""

    conversation: Conversation
    journal: Journal
    snapshots: "Snapshots | None"  # None: nothing of it may reach the disk
    kept: bool = False  # it has had a turn, and can be found
    written: bool = False  # it is in the journal
    branch: Conversation | None = None  # what the request that runs cuts off
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _wanted: int = 0  # who holds the lock, and who waits for it

    def __post_init__(self) -> None:
        self.handle = self.conversation.handle

    @property
    def is_free(self) -> bool:
        """Whether nobody has it or waits for it: then `take` returns before anything else can happen."""
        return self._wanted == 0

    async def take(self) -> None:
        """Wait until all who came before have left it."""
        self._wanted += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._wanted -= 1
            raise
        self.conversation.busy = True

    def release(self) -> None:
        """Of one that was taken."""
        self.conversation.busy = False
        self._wanted -= 1
        self._lock.release()

    @property
    def key(self) -> Key:
        return Key(self.conversation.namespace, self.conversation.id)

    def record(
        self,
        fingerprint: bytes,
        kept: int,
        new: Sequence[StoredMessage],
        start: int,
        ids: Sequence[int],
        sinks: int,
        now: float,
        tools: bytes,
    ) -> Record:
        """What a turn leaves in the journal: behind what is kept of messages and ids come these."""
        conversation = self.conversation
        return Record(
            key=self.key,
            named=conversation.named,
            fingerprint=fingerprint,
            tools=tools,
            sinks=sinks,
            kept_messages=kept,
            messages=new,
            kept_ids=start,
            ids=ids,
            created=conversation.created,
            now=now,
            begins=not self.written,
        )


@dataclass(frozen=True)
class Entry:
    """A session whose lock is held for a request, and what the request means for it."""

    session: Session
    reconciled: Reconciled | None = None  # None: it is new
    source: Session | None = None  # it is a copy of this one, whose snapshot may be of use to it
