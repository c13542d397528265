"""One conversation of a client, and where it is kept."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server.conversation import Conversation
from server.journal import Journal
from server.record import Key

if TYPE_CHECKING:
    from server.snapshots import Snapshots


@dataclass(eq=False)
class Session:
    """One request at a time has its lock; the others wait in order."""

    conversation: Conversation
    journal: Journal
    snapshots: "Snapshots | None"  # None: nothing of it may reach the disk
    kept: bool = False  # it has had a turn, and can be found
    branch: Conversation | None = None  # what the request that runs cuts off
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.handle = self.conversation.handle

    @property
    def key(self) -> Key:
        return Key(self.conversation.namespace, self.conversation.id)
