"""How a conversation with calls is given to a chat template."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

from server.chain import Message
from server.tools.definitions import Tools
from server.tools.format import Call, ToolFormat, dump

MAX_DEPTH = 100  # of JSON that is given to templates; Python's own limit is not far

BLOCK = """\
# Tools

You may call functions to answer the user. These are the functions, as JSON:
<tools>
{tools}
</tools>

To call one, write its name and its arguments as JSON within <tool_call></tool_call> tags:
<tool_call>
{{"name": "<the function's name>", "arguments": {{<the arguments>}}}}
</tool_call>"""


def has_calls(message: Message) -> bool:
    """Whether it is one that only conversations with tools have."""
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def called_names(messages: Iterable[Message]) -> dict[str, str]:
    """Which function each call was of, by its id."""
    return {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}


def nests_deeper(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Of what JSON was parsed to."""
    level = [value]
    for _ in range(limit):
        containers = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not containers:
            return False
        level = [inner for container in containers for inner in container]
    return True


class Dialect(ABC):
    """Depends on the template alone."""

    def __init__(self, format_: ToolFormat) -> None:
        self.format = format_

    @abstractmethod
    def prepare(
        self, messages: Sequence[Message], tools: Tools, names: Mapping[str, str]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Messages and tools as the template takes them. names: of the calls that messages before these made."""

    @property
    @abstractmethod
    def is_native(self) -> bool:
        """Whether the template itself writes tools and calls."""


class Native(Dialect):
    """The template knows tools."""

    is_native = True

    def prepare(
        self, messages: Sequence[Message], tools: Tools, names: Mapping[str, str]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        names = {**names, **called_names(messages)}
        return [self._message(message, names) for message in messages], tools.shown if tools else None

    def _message(self, message: Message, names: Mapping[str, str]) -> dict[str, Any]:
        if message["role"] == "tool":
            id_ = message["tool_call_id"]
            return {"name": names.get(id_, ""), **message, "tool_call_id": _short(id_)}
        if calls := message.get("tool_calls"):
            written = [
                {"id": _short(call["id"]), "type": "function", "function": _as_called(call).__dict__} for call in calls
            ]
            return {**message, "content": message.get("content") or "", "tool_calls": written}
        return dict(message)


class Generic(Dialect):
    """The template knows none: they are text in its messages."""

    is_native = False

    def __init__(self, format_: ToolFormat, *, takes_system: bool) -> None:
        super().__init__(format_)
        self._takes_system = takes_system

    def prepare(
        self, messages: Sequence[Message], tools: Tools, names: Mapping[str, str]
    ) -> tuple[list[dict[str, Any]], None]:
        written: list[dict[str, Any]] = []
        for is_result, group in groupby(messages, lambda message: message["role"] == "tool"):
            if is_result:
                results = (f"<tool_response>\n{message['content']}\n</tool_response>" for message in group)
                written.append({"role": "user", "content": "\n".join(results)})
            else:
                written += map(self._message, group)
        return self._with_block(written, tools) if tools else written, None

    def _message(self, message: Message) -> dict[str, Any]:
        if calls := message.get("tool_calls"):
            text = self.format.write([_as_called(call) for call in calls])
            content = message.get("content")
            return {"role": "assistant", "content": f"{content}\n{text}" if content else text}
        return dict(message)

    def _with_block(self, messages: list[dict[str, Any]], tools: Tools) -> list[dict[str, Any]]:
        block = BLOCK.format(tools="\n".join(map(dump, tools.shown)))
        role = "system" if self._takes_system else "user"
        if messages and messages[0]["role"] == role:
            head = messages[0]["content"]
            text = f"{head}\n\n{block}" if self._takes_system else f"{block}\n\n{head}"
            return [{**messages[0], "content": text}, *messages[1:]]
        return [{"role": role, "content": block}, *messages]


def _as_called(call: Mapping[str, Any]) -> Call:
    """Arguments as an object, which is all that templates take: a model may have written something else."""
    function = call["function"]
    text = function.get("arguments") or "{}"
    try:
        arguments = json.loads(text)
        if "\\" in text:  # it can spell half of a surrogate pair, which no tokenizer takes
            json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        arguments = None
    is_object = isinstance(arguments, dict) and not nests_deeper(arguments)
    return Call(function["name"], arguments if is_object else {"arguments": text})


def _short(id_: str) -> str:
    """Some templates take ids of nine letters and digits only."""
    return blake2b(id_.encode(), digest_size=8).hexdigest()[:9]
