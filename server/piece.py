"""What one step adds to an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoding.turn import Scored
from server.replies import DeltaCall


@dataclass(frozen=True, slots=True)
class Told:
    """A token whose text has begun, where logprobs are asked for."""

    token: int
    offset: int  # characters of the answer before it
    scored: Scored
    thought: bool = False  # or a tag around that: no part of the answer


@dataclass(slots=True)
class Piece:
    """Empty and false where nothing came in a while."""

    text: str = ""  # of the answer
    thought: str = ""  # before it
    calls: Sequence[DeltaCall] = ()  # what it adds to these, behind the text
    tokens: list[Told] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.thought or self.calls)
