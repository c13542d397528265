"""A conversation as the server keeps it: what was said, as digests, and where each turn ended in its tokens."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Self

from server.chain import Chain


@dataclass(eq=False)
class Conversation:
    """One session's messages. `chain` and `positions` are changed through `Index` where the conversation is listed.

    `positions[i]` is the number of the session's tokens when message i ended, or None where that is not known: messages
    that were rendered together, in one prompt, end somewhere in it. For an assistant's message it is the length with
    its last kept token, before the template closes the turn; for the last message of a prompt, the length of the
    prompt, which ends with what the template writes before an answer.
    """

    id: str
    named: bool  # by a client; only a request with this id changes it
    chain: Chain
    sinks: int
    created: float  # seconds since the epoch
    last_used: float
    length: int = 0  # tokens
    turns: int = 0
    positions: list[int | None] = field(default_factory=list)
    busy: bool = False  # a turn runs: what is stored here is the state before it

    def __post_init__(self) -> None:
        self.check()

    @property
    def handle(self) -> str:
        """Its name in the worker and of its snapshot: not even one that is made anew under the same id has the same."""
        parts = struct.pack("<Id", len(self.namespace), self.created), self.namespace, self.id.encode()
        return blake2b(b"".join(parts), digest_size=16).hexdigest()

    @property
    def namespace(self) -> bytes:
        return self.chain.namespace

    @property
    def num_messages(self) -> int:
        return len(self.chain)

    @property
    def num_turns(self) -> int:
        """Answers in it."""
        return self.chain.roles.count("assistant")

    def boundary(self, num_messages: int) -> int:
        """The most of the first `num_messages` messages that other ones can follow, rolled back to there.

        That is, to the end of an assistant's message: behind the last message of a prompt the template has begun an
        answer already. 0 where there is none.
        """
        while num_messages and (self.chain.roles[num_messages - 1] != "assistant" or self.end(num_messages) is None):
            num_messages -= 1
        return num_messages

    def end(self, num_messages: int) -> int | None:
        """The session's length in tokens when it had this many messages, or None where that is not known."""
        return self.positions[num_messages - 1] if num_messages else 0

    def truncate(self, num_messages: int) -> None:
        """Forget later messages. Their end must be known."""
        length = self.end(num_messages)
        assert length is not None
        self.chain.truncate(num_messages)
        del self.positions[num_messages:]
        self.length = length

    def extend(self, roles: Sequence[str], digests: Sequence[bytes], length: int) -> None:
        """Add messages that were rendered together, or one that was generated; then the session has `length` tokens."""
        assert roles or length == self.length
        self.chain.extend(roles, digests)
        if roles:
            self.positions += [None] * (len(roles) - 1) + [length]
        self.length = length

    def fork(self, id_: str, num_messages: int, now: float, *, named: bool = False) -> Self:
        """A copy of the first messages. Their end must be known."""
        length = self.end(num_messages)
        assert length is not None
        chain, positions = self.chain.copy(num_messages), self.positions[:num_messages]
        return type(self)(id_, named, chain, self.sinks, now, now, length, self.turns, positions)

    def check(self) -> None:
        """Raises AssertionError where the parts do not fit together."""
        assert len(self.positions) == len(self.chain.roles) == len(self.chain.digests) == len(self.chain.links) - 1
        known = [position for position in self.positions if position is not None]
        assert known == sorted(known)
        assert not self.positions or self.positions[-1] == self.length or self.is_foreign

    @property
    def is_unfinished(self) -> bool:
        """Whether it is what a turn left that never ended: a copy that was to be answered, which nobody was told of."""
        return not self.named and bool(self.chain.roles) and self.chain.roles[-1] != "assistant"

    @property
    def is_foreign(self) -> bool:
        """Whether its ids are another model's: its messages are all that is of use."""
        return bool(self.positions) and self.length == 0

    def forget_ids(self) -> None:
        """They are another model's."""
        self.positions, self.length = [None] * len(self.positions), 0
