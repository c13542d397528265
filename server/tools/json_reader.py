"""Calls that are JSON objects behind a marker, as most models write them."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from server.tools.object_scanner import ObjectScanner
from server.tools.reader import CallReader
from server.tools.text import WHITE, begins


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
    def __init__(self, marks: Marks, names: Collection[str]) -> None:
        """names: of the functions that may be called."""
        super().__init__()
        self._marks, self._names = marks, names
        self._at = _At.START if marks.is_bare else _At.TEXT
        self._scanner = ObjectScanner()
        self._bracket = marks.in_list  # whether one is to come
        self._is_call = False  # whether the object at hand is one
        self._has_arguments = False

    def _read(self) -> bool:
        match self._at:
            case _At.START:
                return self._read_start()
            case _At.TEXT:
                return self._read_text()
            case _At.CALL:
                return self._read_call()
            case _At.BEHIND:
                return self._read_behind()

    @property
    def _is_within_call(self) -> bool:
        return self._is_call or self._at is _At.BEHIND

    def _read_start(self) -> bool:
        text = self._text.lstrip(WHITE)
        if not text:
            return False
        self._at = _At.CALL if text.startswith("[" if self._marks.in_list else "{") else _At.TEXT
        return True

    def _read_text(self) -> bool:
        if not self._read_until(self._marks.opens):
            return False
        self._at, self._bracket = _At.CALL, self._marks.in_list
        return True

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
            self._is_call, self._has_arguments = True, False
            self._call(name)
        if self._is_call and (arguments := self._scanner.take_arguments()):
            self._has_arguments = True
            self._add(arguments)
        return True

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
        found = begins(text, *ends)
        if found == "":  # white space alone begins all of them
            return False
        self._end_call()
        if found == marks.separates:
            self._at, self._held = _At.CALL, found
        else:
            self._at = _At.TEXT
        if found is not None and found != marks.opens:  # that is read as text is
            self._text = text[len(found) :]
        return True
