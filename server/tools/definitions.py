"""The functions that a request offers to the model, and which of them it may call."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

Mode = Literal["auto", "none", "required"]
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Function:
    """One that may be called: what the model is told of it."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)  # a JSON schema of an object
    strict: bool = False  # whether the server sees to it that arguments follow the schema; the model is not told

    @property
    def shown(self) -> dict[str, Any]:
        """As templates take it."""
        told = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **told, "parameters": self.parameters}}


@dataclass(frozen=True)
class Tools:
    """All functions of a conversation, in the client's order. Empty: it has none."""

    functions: Sequence[Function] = ()

    def __bool__(self) -> bool:
        return bool(self.functions)

    @cached_property
    def shown(self) -> list[dict[str, Any]]:
        """As templates take them."""
        return [function.shown for function in self.functions]

    @cached_property
    def encoded(self) -> bytes:
        """As they are kept and compared: JSON, in the client's order of keys, in which templates write them."""
        return json.dumps(self.shown, ensure_ascii=False, separators=(",", ":")).encode() if self else b""

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """What was kept. Whether a function is strict is not."""
        return cls([Function(**tool["function"]) for tool in json.loads(encoded or b"[]")])

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.functions)


@dataclass(frozen=True)
class Choice:
    """What a request leaves to the model."""

    mode: Mode = "auto"
    names: frozenset[str] | None = None  # that may be called; None: all
    parallel: bool = True  # whether one answer may hold several calls

    def callable(self, tools: Tools) -> list[Function]:
        """The functions that may be called."""
        if self.mode == "none":
            return []
        return [function for function in tools.functions if self.names is None or function.name in self.names]

    def constrains(self, tools: Tools) -> bool:
        """Whether the model must not be left to itself: a call is asked for, or one must be right."""
        functions = self.callable(tools)
        if self.mode == "required":
            return True
        return bool(functions) and (self.names is not None or any(function.strict for function in functions))
