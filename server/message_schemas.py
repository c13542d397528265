"""Messages as clients send them."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import PydanticCustomError

from server.chain import Message
from server.strict import Content, Strict, Text, TextPart, as_parts, check_unicode

ROLES = frozenset({"system", "developer", "user", "assistant"})


class CalledFunction(Strict):
    name: Text
    arguments: Text  # as they were generated: they may be no JSON
    parsed_arguments: Any = None  # of OpenAI's SDK, which sends back what it has made of them


class ToolCall(Strict):
    id: Annotated[str, Field(min_length=1), AfterValidator(check_unicode)]
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None  # of those who send back what they streamed

    def plain(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


def only_of(role: str) -> AfterValidator:
    def check(value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("role", role) != role:
            raise PydanticCustomError("role", f"Only messages with role '{role}' have it")
        return value

    return AfterValidator(check)


def _content(content: Any, info: ValidationInfo) -> Any:
    """Text, which only a message with calls may lack."""
    if content is not None:
        return as_parts(content)
    if info.data.get("tool_calls"):
        return []
    raise PydanticCustomError("missing", "Field required")


def _tool_call_id(value: Any, info: ValidationInfo) -> Any:
    if value is None and info.data.get("role") == "tool":
        raise PydanticCustomError("missing", "Field required")
    return value


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: Annotated[list[ToolCall], Field(min_length=1), only_of("assistant")] | None = None
    tool_call_id: Annotated[Text | None, only_of("tool"), BeforeValidator(_tool_call_id)] = Field(
        default=None, validate_default=True
    )
    content: Annotated[list[TextPart], BeforeValidator(_content, Content | None)] = Field(
        default=None, validate_default=True
    )
    name: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(check_unicode)] | None = None
    # What an assistant thought before, for templates that show it.
    reasoning_content: Annotated[Text, only_of("assistant")] | None = None

    def plain(self) -> Message:
        """As templates take it, and as it is kept. They know no developers: theirs is the word of the system."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": "".join(part.text for part in self.content)}
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [call.plain() for call in self.tool_calls]
        return message


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """What a `ChatMessage` that has a role and one text comes to, without taking as long to validate."""

    role: str
    content: str
    name: None = None

    def plain(self) -> Message:
        return {"role": "system" if self.role == "developer" else self.role, "content": self.content}


def fast(messages: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Long histories are sent again at each turn: as long as messages are plain ones, they take a short way."""
    if not isinstance(messages, list) or not messages:
        return validate(messages)
    plain = []
    for message in messages:
        if (
            type(message) is not dict
            or len(message) != 2
            or type(text := message.get("content")) is not str
            or type(role := message.get("role")) is not str  # what cannot be hashed, too
            or role not in ROLES
            or not (text.isascii() or _is_unicode(text))
        ):
            return validate(messages)
        plain.append(PlainMessage(role, text))
    return plain


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
