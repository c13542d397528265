"""Calls in a text that arrives piece by piece."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from server.tools.text import WHITE, num_open


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
    space between content and a call is neither's. Held back is what may become a mark, and a call until it is known
    which function it names.
    """

    def __init__(self) -> None:
        self.num_ended = 0  # calls that nothing can be added to
        self._text = ""  # not yet read
        self._held = ""  # read, and content unless a call comes of it
        self._index = -1  # of the last call
        self._pieces: list[Piece] = []

    def push(self, text: str) -> list[Piece]:
        """What is known by now."""
        self._text += text
        while self._text and self._read():
            pass
        return self._take()

    def flush(self) -> list[Piece]:
        """At the end of the text: what was held back."""
        if self._is_within_call:
            self._end_call()
        elif (rest := self._held + self._text).strip() or self._index < 0:
            self._say(rest)
        self._text = self._held = ""
        return self._take()

    @abstractmethod
    def _read(self) -> bool:
        """Reads of `_text` what can be read. Whether there may be more."""

    @property
    @abstractmethod
    def _is_within_call(self) -> bool:
        """Whether what is not yet read belongs to a call, or is nothing but a mark behind one."""

    @abstractmethod
    def _end_call(self) -> None:
        """Of one that has begun; else nothing."""

    def _read_until(self, mark: str) -> bool:
        """Content, up to a mark, which is then held."""
        before, found, rest = self._text.partition(mark)
        if found:
            content = before.rstrip(WHITE)
            self._held, self._text = before[len(content) :] + found, rest
        else:
            content = self._text[: len(self._text) - num_open(self._text, mark)].rstrip(WHITE)
            self._text = self._text[len(content) :]
        self._say(content)
        return bool(found)

    def _say(self, content: str) -> None:
        if self._pieces and isinstance(last := self._pieces[-1], str):
            self._pieces[-1] = last + content
        elif content:
            self._pieces.append(content)

    def _call(self, name: str) -> None:
        self._index += 1
        self._held = ""
        self._pieces.append(CallPiece(self._index, name))

    def _add(self, arguments: str) -> None:
        last = self._pieces[-1] if self._pieces else ""
        if isinstance(last, CallPiece) and last.name is None and last.index == self._index:
            self._pieces[-1] = CallPiece(self._index, arguments=last.arguments + arguments)
        else:
            self._pieces.append(CallPiece(self._index, arguments=arguments))

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces
