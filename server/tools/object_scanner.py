"""A call in JSON, {"name": ..., "arguments": {...}}, read as it comes."""

import json
from enum import Enum, auto

from server.tools.text import WHITE

NAMES = frozenset({"name"})
ARGUMENTS = frozenset({"arguments", "parameters"})
OTHERS = frozenset({"type", "id"})  # that calls may have


class _At(Enum):
    OBJECT = auto()  # before {
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()  # before a value
    STRING = auto()  # in a value
    NESTED = auto()
    SCALAR = auto()
    COMMA = auto()  # behind a value
    END = auto()
    FAULT = auto()


class ObjectScanner:
    """Members may come in any order. One that no call has, in front of the name, is a fault: JSON may be an answer.

    Arguments come out as they are written, with one exception: some models write them as a string that holds JSON.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._at = _At.OBJECT
        self._key = ""
        self._raw = ""  # of the string or the scalar at hand
        self._is_key = False
        self._in_string = self._escaped = False
        self._depth = 0
        self._arguments = ""

    @property
    def is_complete(self) -> bool:
        return self._at is _At.END

    @property
    def has_failed(self) -> bool:
        """Whether it is no JSON object."""
        return self._at is _At.FAULT

    @property
    def is_behind_value(self) -> bool:
        """Whether a member has just ended."""
        return self._at is _At.COMMA

    @property
    def has_begun(self) -> bool:
        return self._at is not _At.OBJECT

    def take_arguments(self) -> str:
        """Those that came since the last time."""
        arguments, self._arguments = self._arguments, ""
        return arguments

    def push(self, character: str) -> None:
        """Not to be called once it is complete or has failed."""
        if self._at is _At.STRING:
            self._push_string(character)
        elif self._at is _At.NESTED:
            self._push_nested(character)
        elif self._at is _At.SCALAR and character not in f"{WHITE},}}":
            self._raw += character
        else:
            if self._at is _At.SCALAR:
                self._end_value(self._raw)
            if character not in WHITE:
                self._push_between(character)

    def _push_between(self, character: str) -> None:
        match self._at, character:
            case _At.OBJECT, "{":
                self._at = _At.FIRST_KEY
            case ((_At.FIRST_KEY | _At.KEY), '"'):
                self._begin_string(character, is_key=True)
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.VALUE, '"':
                self._begin_string(character, is_key=False)
            case _At.VALUE, ("{" | "["):
                self._at = _At.NESTED
                self._push_nested(character)
            case _At.VALUE, _ if character not in ",:}]":
                self._raw, self._at = character, _At.SCALAR
            case _At.COMMA, ",":
                self._at = _At.KEY
            case ((_At.COMMA | _At.FIRST_KEY), "}"):
                self._at = _At.END
            case _:
                self._at = _At.FAULT

    def _begin_string(self, character: str, *, is_key: bool) -> None:
        self._raw, self._is_key, self._at = character, is_key, _At.STRING

    def _push_string(self, character: str) -> None:
        self._raw += character
        if self._ends_string(character):
            try:
                text = json.loads(self._raw, strict=False)
            except ValueError:
                self._at = _At.FAULT
                return
            if self._is_key:
                is_known = self.name is not None or text in NAMES | ARGUMENTS | OTHERS
                self._key, self._at = text, _At.COLON if is_known else _At.FAULT
            else:
                self._end_value(text)

    def _ends_string(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            return character == '"'
        return False

    def _push_nested(self, character: str) -> None:
        if self._key in ARGUMENTS:
            self._arguments += character
        if self._in_string:
            self._in_string = not self._ends_string(character)
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if not self._depth:
                self._at = _At.COMMA

    def _end_value(self, value: str) -> None:
        """Of a string, or a number, true, false or null."""
        if self._key in NAMES and self.name is None:
            self.name = value
        elif self._key in ARGUMENTS and value != "null":
            self._arguments += value
        self._at = _At.COMMA
