"""How a kind of model writes its calls."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from server.tools.definitions import Choice, Function, Tools
from server.tools.reader import CallReader

# Of JSON in grammars: one way to write each value, as Python's json.dumps does.
_SPELLING = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allow_general_unicode_escapes": False,
}


class UnenforceableError(ValueError):
    """A strict function's schema says what no grammar can; the message says what."""


@dataclass(frozen=True)
class Call:
    """One that was made."""

    name: str
    arguments: Mapping[str, Any]


class ToolFormat(ABC):
    """Has no state."""

    name: ClassVar[str]
    marks: ClassVar[Sequence[str]]  # texts that calls are known by; where they are special tokens, they must be seen

    @abstractmethod
    def reader(self, functions: Sequence[Function]) -> CallReader:
        """For one answer; functions: that may be called."""

    @abstractmethod
    def write(self, calls: Sequence[Call]) -> str:
        """As the model writes them, for templates that do not."""

    @abstractmethod
    def grammar(self, tools: Tools, choice: Choice, special: Mapping[str, int]) -> str:
        """What the model may write, in llguidance's dialect of Lark. special: tokens by their text, of the marks.

        Raises `UnenforceableError`.
        """


def literal(text: str) -> str:
    """Text in a grammar."""
    return json.dumps(text, ensure_ascii=False)


def mark(text: str, special: Mapping[str, int]) -> str:
    """Text in a grammar, or the token that it is."""
    return f"<[{special[text]}]>" if text in special else literal(text)


def schema(function: Function) -> str:
    """Its arguments in a grammar."""
    return json_of(function.parameters, strict=function.strict)


def json_of(schema: Mapping[str, Any], *, strict: bool) -> str:
    """JSON in a grammar. strict: what of the schema cannot be enforced is an error, else left out of account."""
    options = _SPELLING | {"lenient": not strict, "coerce_one_of": not strict}
    return f"%json {json.dumps({**schema, 'x-guidance': options}, ensure_ascii=False)}"


def dump(value: Any) -> str:
    """JSON as templates write it."""
    return json.dumps(value, ensure_ascii=False)
