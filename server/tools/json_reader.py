"""Calls that are JSON objects behind a marker, as most models write them."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from server.tools.object_scanner import WHITE, ObjectScanner
from server.tools.reader import CallPiece, CallReader, Piece


@dataclass(frozen=True)
class Marks:
    """What stands around calls."""

    opens: str  # in front of the first, or of each
    closes: str = ""  # behind each; a model may forget it
    separates: str = ""  # between two behind one `opens`; "": each has its own
    in_list: bool = False  # whether they stand in brackets
    is_bare: bool = False  # whether a text that begins with a call needs no `opens`


class _At(Enum):
    START = auto()  # of a text that may begin with a call
    TEXT = auto()
    CALL = auto()  # behind `opens`
    BEHIND = auto()  # a call


class JsonReader(CallReader):
    """Holds back what may become a mark, and a call until it is known which function it names."""

    def __init__(self, marks: Marks, names: Collection[str]) -> None:
        """names: of the functions that may be called."""
        super().__init__()
        self._marks, self._names = marks, names
        self._at = _At.START if marks.is_bare else _At.TEXT
        self._text = ""  # not yet read
        self._held = ""  # read, and content unless a call comes of it
        self._scanner = ObjectScanner()
        self._bracket = marks.in_list  # whether one is to come
        self._index = -1  # of the last call
        self._is_call = False  # whether the object at hand is one
        self._has_arguments = False
        self._pieces: list[Piece] = []

    def push(self, text: str) -> list[Piece]:
        self._text += text
        while self._text and self._read():
            pass
        return self._take()

    def flush(self) -> list[Piece]:
        if self._is_call or self._at is _At.BEHIND:  # then only what may become a mark is held
            self._end_call()
        elif (rest := self._held + self._text).strip() or self._index < 0:
            self._say(rest)
        self._text = self._held = ""
        return self._take()

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _say(self, content: str) -> None:
        if self._pieces and isinstance(last := self._pieces[-1], str):
            self._pieces[-1] = last + content
        elif content:
            self._pieces.append(content)

    def _read(self) -> bool:
        """Whether there may be more to read."""
        match self._at:
            case _At.START:
                return self._read_start()
            case _At.TEXT:
                return self._read_text()
            case _At.CALL:
                return self._read_call()
            case _At.BEHIND:
                return self._read_behind()

    def _read_start(self) -> bool:
        text = self._text.lstrip(WHITE)
        if not text:
            return False
        self._at = _At.CALL if text.startswith("[" if self._marks.in_list else "{") else _At.TEXT
        return True

    def _read_text(self) -> bool:
        opens = self._marks.opens
        before, mark, rest = self._text.partition(opens)
        if mark:
            content = before.rstrip(WHITE)
            self._say(content)
            self._held, self._text = before[len(content) :] + mark, rest
            self._at, self._bracket = _At.CALL, self._marks.in_list
            return True
        content = self._text[: len(self._text) - _num_open(self._text, opens)].rstrip(WHITE)
        self._say(content)
        self._text = self._text[len(content) :]
        return False

    def _read_call(self) -> bool:
        """Character by character: few come at a time."""
        for end, character in enumerate(self._text, 1):
            if not self._is_call:
                self._held += character
            if not self._scan(character):
                return self._no_call(end)
            if self._scanner.is_complete:
                self._at, self._text = _At.BEHIND, self._text[end:]
                if not self._marks.closes:
                    self._end_call()
                return True
        self._text = ""
        return False

    def _scan(self, character: str) -> bool:
        """Whether it is a call, or may become one."""
        if self._bracket:
            self._bracket = character in WHITE
            return self._bracket or character == "["
        self._scanner.push(character)
        name = self._scanner.name
        if self._scanner.has_failed or (self._scanner.is_complete and name is None):
            return False
        if name is not None and not self._is_call:
            if name not in self._names:
                return False
            self._begin_call(name)
        if self._is_call and (arguments := self._scanner.take_arguments()):
            self._add(arguments)
        return True

    def _begin_call(self, name: str) -> None:
        self._index += 1
        self._is_call, self._has_arguments, self._held = True, False, ""
        self._pieces.append(CallPiece(self._index, name))

    def _add(self, arguments: str) -> None:
        self._has_arguments = True
        last = self._pieces[-1] if self._pieces else ""
        if isinstance(last, CallPiece) and last.name is None and last.index == self._index:
            self._pieces[-1] = CallPiece(self._index, arguments=last.arguments + arguments)
        else:
            self._pieces.append(CallPiece(self._index, arguments=arguments))

    def _end_call(self) -> None:
        if self._is_call:
            if self._scanner.is_complete and not self._has_arguments:
                self._add("{}")
            self.num_ended += 1
        self._is_call, self._scanner = False, ObjectScanner()

    def _no_call(self, end: int) -> bool:
        """The object at hand is none, or what follows a call's beginning makes no sense: the rest is content."""
        if self._is_call:
            self._end_call()
        self._say(self._held)
        self._held, self._text = "", self._text[end:]
        self._scanner, self._at = ObjectScanner(), _At.TEXT
        return True

    def _read_behind(self) -> bool:
        """A mark, or content after all. Between the two it waits."""
        marks, text = self._marks, self._text.lstrip(WHITE)
        ends = [mark for mark in (marks.closes, marks.separates, "]" if marks.in_list else "", marks.opens) if mark]
        found = next((mark for mark in ends if text.startswith(mark)), None)
        if found is None and any(mark.startswith(text) for mark in ends):
            return False  # white space alone begins all of them
        self._end_call()
        if found == marks.separates:
            self._at, self._held = _At.CALL, found
        else:
            self._at = _At.TEXT
        if found is not None and found != marks.opens:  # that is read as text is
            self._text = text[len(found) :]
        return True


def _num_open(text: str, mark: str) -> int:
    """Length of the longest end of `text` that may become `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)
