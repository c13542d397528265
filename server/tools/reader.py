"""Calls in a text that arrives piece by piece."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class CallPiece:
    """What a piece of text adds to a call."""

    index: int  # of the call, in this answer
    name: str | None = None  # with its first piece, which has no arguments
    arguments: str = ""


Piece = str | CallPiece  # content, or of a call


class CallReader(ABC):
    """Of one answer. What it makes of a text depends on the whole, and not on how it is cut into pieces.

    A call is what names a function that may be called; all else is content, also what only looks like a call. White
    space between content and a call is neither's.
    """

    def __init__(self) -> None:
        self.num_ended = 0  # calls that nothing can be added to

    @abstractmethod
    def push(self, text: str) -> list[Piece]:
        """What is known by now."""

    @abstractmethod
    def flush(self) -> list[Piece]:
        """At the end of the text: what was held back."""
