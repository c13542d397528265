"""Calls that are a name and JSON behind a mark each, as newer models of Mistral write them."""

from collections.abc import Collection
from enum import Enum, auto

from server.tools.object_scanner import ObjectScanner
from server.tools.reader import CallReader
from server.tools.text import WHITE, begins

OPENS, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MAX_HEAD = 200  # characters of a name, and an id that some have behind it


class _At(Enum):
    TEXT = auto()
    NAME = auto()
    ARGUMENTS = auto()
    BEHIND = auto()


class NamedReader(CallReader):
    def __init__(self, names: Collection[str]) -> None:
        """names: of the functions that may be called."""
        super().__init__()
        self._names = names
        self._at = _At.TEXT
        self._scanner = ObjectScanner()
        self._has_arguments = False

    def _read(self) -> bool:
        match self._at:
            case _At.TEXT:
                return self._read_text()
            case _At.NAME:
                return self._read_name()
            case _At.ARGUMENTS:
                return self._read_arguments()
            case _At.BEHIND:
                return self._read_behind()

    @property
    def _is_within_call(self) -> bool:
        return self._at is _At.ARGUMENTS

    def _read_text(self) -> bool:
        if not self._read_until(OPENS):
            return False
        self._at = _At.NAME
        return True

    def _read_name(self) -> bool:
        head, mark, rest = self._text.partition(ARGUMENTS)
        name = head.partition(ID)[0].strip(WHITE)
        if mark and name in self._names:
            self._call(name)
            self._at, self._text = _At.ARGUMENTS, rest
            self._scanner, self._has_arguments = ObjectScanner(), False
            for character in '{"arguments":':  # what follows is their value
                self._scanner.push(character)
            return True
        if mark or OPENS in head or len(head) > MAX_HEAD:
            self._say(self._held)
            self._held, self._at = "", _At.TEXT
            return True
        return False

    def _read_arguments(self) -> bool:
        for end, character in enumerate(self._text, 1):
            self._scanner.push(character)
            if arguments := self._scanner.take_arguments():
                self._has_arguments = True
                self._add(arguments)
            if self._scanner.is_behind_value or self._scanner.has_failed:
                self._text = self._text[end:]
                self._end_call()
                return True
        self._text = ""
        return False

    def _read_behind(self) -> bool:
        text = self._text.lstrip(WHITE)
        if begins(text, OPENS) == "":
            return False
        self._at = _At.TEXT
        return True

    def _end_call(self) -> None:
        if not self._has_arguments and self._scanner.is_behind_value:
            self._add("{}")
        self.num_ended += 1
        self._at = _At.BEHIND
