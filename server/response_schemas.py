"""What clients may ask of the Responses API, as strictly as in `server.schemas`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from server.chain import Message
from server.schemas import (
    MAX_LOGPROBS,
    ChatRequest,
    Generation,
    OutputTokens,
    Strict,
    Text,
    TextFormat,
    fast,
)

LOGPROBS = "message.output_text.logprobs"
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Strict):
    type: Literal["input_text"]
    text: Text


class OutputText(Strict):
    """As it was answered. What stands beside the text is nothing that the model reads."""

    type: Literal["output_text"]
    text: Text
    annotations: list[Any] = Field(default=[])
    logprobs: list[Any] = Field(default=[])


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: Text


def _kind_of_part(part: Any) -> str:
    return "output" if isinstance(part, dict) and part.get("type") == "output_text" else "input"


Part = Annotated[
    Annotated[InputText, Tag("input")] | Annotated[OutputText, Tag("output")],
    Discriminator(_kind_of_part),
]


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    if isinstance(content, list) and content:
        return content
    raise PydanticCustomError("content", "Input should be a string or a list of text parts")


class InputMessage(Strict):
    """Something said, or an output message that is sent back."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Part], BeforeValidator(_as_parts, str | Annotated[list[Part], Field(min_length=1)])]
    id: Text | None = None
    status: Status | None = None

    def plain(self) -> Message:
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "".join(part.text for part in self.content)}


class ReasoningItem(Strict):
    """What was thought before an answer, sent back: templates may show it."""

    type: Literal["reasoning"]
    id: Text | None = None
    summary: Annotated[list[Any], Field(max_length=0)] = Field(default=[])  # none is ever written here
    content: list[ReasoningText] = Field(default=[])
    status: Status | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class ItemReference(Strict):
    """An item that a response had, by its id."""

    type: Literal["item_reference"]
    id: Text


KINDS = ("reasoning", "item_reference")  # beside messages


def _kind_of_item(item: Any) -> str:
    """Of what there is not, it is told that it is no message."""
    kind = item.get("type") if isinstance(item, dict) else None
    return str(kind) if kind in KINDS else "message"


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind_of_item),
]


def _input(asked: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    if not isinstance(asked, list):
        raise PydanticCustomError("input", "Input should be a string or a list of items")
    return fast(asked, validate)


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a chat, as it is kept."""

    message: Message
    name: None = None  # what was refused once is not asked again

    @property
    def role(self) -> str:
        return str(self.message["role"])

    def plain(self) -> Message:
        return self.message


class TextSettings(Strict):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None  # which is none in particular


class NoReasoning(Strict):
    effort: Literal["none"] | None = None


def _check_false(value: bool) -> bool:
    """A literal False would let 0 pass."""
    if value:
        raise PydanticCustomError("false", "Input should be false")
    return value


Never = Annotated[bool, AfterValidator(_check_false), Field(json_schema_extra={"const": False})]


class Plainly(Strict):
    include_obfuscation: Never | None = None


class ResponseRequest(Generation):
    """Body of POST /v1/responses."""

    input: Annotated[
        list[Item], Field(min_length=1), WrapValidator(_input, str | Annotated[list[Item], Field(min_length=1)])
    ]
    instructions: Text | None = None
    max_output_tokens: OutputTokens | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] = Field(default=[])
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    text: TextSettings = TextSettings()
    truncation: Literal["auto", "disabled"] | None = None

    # Whose turn it is (docs/responses.md).
    previous_response_id: Text | None = None
    store: bool = True

    # What there is only one way for here.
    background: Never = False
    reasoning: NoReasoning | None = None
    service_tier: Literal["auto", "default"] = "default"
    stream_options: Plainly | None = None
    tools: Annotated[list[Any], Field(max_length=0)] = Field(default=[])
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True

    # More hints.
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None

    @property
    def logprobs(self) -> bool:
        return LOGPROBS in self.include

    def chat(self, messages: Sequence[Message]) -> ChatRequest:
        """The same as a chat, with all that was said."""
        said: list[Any] = [Said(message) for message in messages]
        return ChatRequest.model_construct(
            **{name: getattr(self, name) for name in Generation.model_fields},
            messages=said,
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            store=self.store,
        )
