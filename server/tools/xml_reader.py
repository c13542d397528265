"""Calls that are tags with parameters in them, as Qwen's coders write them."""

import json
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from server.tools.definitions import Function
from server.tools.reader import CallReader
from server.tools.text import WHITE, begins

OPENS, CLOSES = "<tool_call>", "</tool_call>"
FUNCTION, PARAMETER = "<function=", "<parameter="
ENDS_FUNCTION, ENDS_PARAMETER = "</function>", "</parameter>"
MAX_NAME = 1000  # characters of a function's or a parameter's: what goes on longer is none


class _At(Enum):
    TEXT = auto()
    CALL = auto()  # before the function's name
    PARAMETERS = auto()  # before the next one
    VALUE = auto()
    BEHIND = auto()  # the function


class XmlReader(CallReader):
    """A parameter is passed on when it is whole. Which type it has, its schema says; unknown ones are text."""

    def __init__(self, functions: Sequence[Function]) -> None:
        """functions: that may be called."""
        super().__init__()
        self._schemas = {function.name: function.parameters.get("properties") or {} for function in functions}
        self._at = _At.TEXT
        self._schema: Mapping[str, Any] = {}  # of the call's parameters
        self._parameter = ""
        self._begun = False  # whether the call has arguments

    def _read(self) -> bool:
        match self._at:
            case _At.TEXT:
                return self._read_text()
            case _At.CALL:
                return self._read_name()
            case _At.PARAMETERS:
                return self._read_parameter()
            case _At.VALUE:
                return self._read_value()
            case _At.BEHIND:
                return self._read_behind()

    @property
    def _is_within_call(self) -> bool:
        return self._at not in (_At.TEXT, _At.CALL)

    def _read_text(self) -> bool:
        if not self._read_until(OPENS):
            return False
        self._at = _At.CALL
        return True

    def _read_name(self) -> bool:
        text = self._text.lstrip(WHITE)
        mark = begins(text, FUNCTION)
        name, end, rest = text.removeprefix(FUNCTION).partition(">")
        if mark and end and name in self._schemas:
            self._call(name)
            self._schema, self._text = self._schemas[name], rest
            self._at, self._begun = _At.PARAMETERS, False
            return True
        if mark is None or end or len(name) > MAX_NAME:
            self._say(self._held)
            self._held, self._at = "", _At.TEXT
            return True
        return False

    def _read_parameter(self) -> bool:
        text = self._text.lstrip(WHITE)
        mark = begins(text, PARAMETER, ENDS_FUNCTION)
        if mark == "":
            return False
        name, end, rest = text.removeprefix(PARAMETER).partition(">")
        if mark == PARAMETER and end:
            self._parameter, self._text, self._at = name, rest, _At.VALUE
        elif mark == PARAMETER and len(name) <= MAX_NAME:
            return False
        elif mark == ENDS_FUNCTION:
            self._text, self._at = text.removeprefix(ENDS_FUNCTION), _At.BEHIND
            self._add("}" if self._begun else "{}")
        else:  # the tag that closes was forgotten, or it makes no sense
            self._at = _At.BEHIND
            self._add("}" if self._begun else "{}")
        return True

    def _read_value(self) -> bool:
        value, end, rest = self._text.partition(ENDS_PARAMETER)
        if end:
            self._add(f"{', ' if self._begun else '{'}{json.dumps(self._parameter, ensure_ascii=False)}: ")
            self._add(_as_json(value.removeprefix("\n").removesuffix("\n"), self._schema.get(self._parameter)))
            self._begun, self._text, self._at = True, rest, _At.PARAMETERS
        return bool(end)

    def _read_behind(self) -> bool:
        text = self._text.lstrip(WHITE)
        mark = begins(text, CLOSES)
        if mark == "":
            return False
        self._end_call()
        self._at = _At.TEXT
        if mark:
            self._text = text.removeprefix(CLOSES)
        return True

    def _end_call(self) -> None:
        self.num_ended += 1


def _as_json(value: str, schema: Any) -> str:
    """A parameter's text as the JSON that was meant."""
    if isinstance(schema, Mapping) and schema.get("type") != "string":
        try:
            told = json.dumps(json.loads(value), ensure_ascii=False, allow_nan=False)
            told.encode()  # JSON can spell half of a surrogate pair, which is no text
            return told
        except (ValueError, RecursionError):
            pass
    return json.dumps(value, ensure_ascii=False)
