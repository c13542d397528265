"""What goes into the journal and comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from server.chain import Message
from server.conversation import Conversation


class JournalError(Exception):
    """What was asked for could not be written or read; nothing of it was. The message says why."""


class Key(NamedTuple):
    namespace: bytes  # whose it is
    id: str


@dataclass(frozen=True)
class StoredMessage:
    """A message as the client saw it; `position` as in `Conversation.positions`."""

    message: Message
    position: int | None


@dataclass(frozen=True)
class Record:
    """What one turn leaves: the session's row anew, and of its messages and ids what is kept and what is added.

    A session that is not there yet is created; then nothing can be kept. Without messages it is no turn: that creates
    a session, or rolls one back.
    """

    key: Key
    named: bool
    fingerprint: bytes  # of all that a token id depends on: model, tokenizer, template, cache rule
    tools: bytes
    sinks: int
    kept_messages: int
    messages: Sequence[StoredMessage]
    kept_ids: int
    ids: Sequence[int]
    created: float  # seconds since the epoch
    now: float
    begins: bool = True  # it may be new; else one that is not there was removed, and stays so


class Branch(NamedTuple):
    """A copy of a session's first messages and ids."""

    id: str
    num_messages: int
    num_ids: int
    now: float


@dataclass(frozen=True)
class Stored:
    conversation: Conversation
    fingerprint: bytes
