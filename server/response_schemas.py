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
from server.format_schemas import JsonObjectFormat, JsonSchemaFormat, NamedSchema, TextFormat, check_format
from server.message_schemas import fast
from server.schemas import MAX_LOGPROBS, ChatRequest, Generation, OutputTokens, TemplateOptions
from server.strict import Strict, Text
from server.tool_schemas import (
    MAX_TOOLS,
    AllowedTools,
    FunctionDefinition,
    FunctionName,
    FunctionNamed,
    FunctionTool,
    ToolChoice,
    ToolNamed,
    ToolsAllowed,
    kind_of_choice,
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


class FunctionCall(Strict):
    """A call that a response made, sent back."""

    type: Literal["function_call"]
    call_id: Annotated[Text, Field(min_length=1)]
    name: Text
    arguments: Text  # as they were generated: they may be no JSON
    id: Text | None = None
    status: Status | None = None
    parsed_arguments: Any = None  # of OpenAI's SDK, which sends back what it has made of them

    def plain(self) -> dict[str, Any]:
        """As messages hold it."""
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class FunctionOutput(Strict):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: Annotated[Text, Field(min_length=1)]
    output: Annotated[list[Part], BeforeValidator(_as_parts)]
    id: Text | None = None
    status: Status | None = None

    def plain(self) -> Message:
        content = "".join(part.text for part in self.output)
        return {"role": "tool", "content": content, "tool_call_id": self.call_id}


class ItemReference(Strict):
    """An item that a response had, by its id."""

    type: Literal["item_reference"]
    id: Text


KINDS = ("reasoning", "function_call", "function_call_output", "item_reference")  # beside messages


def _kind_of_item(item: Any) -> str:
    """Of what there is not, it is told that it is no message."""
    kind = item.get("type") if isinstance(item, dict) else None
    return str(kind) if kind in KINDS else "message"


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionOutput, Tag("function_call_output")]
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


class FlatSchemaFormat(NamedSchema):
    """As a chat's, without a level."""

    type: Literal["json_schema"]


class TextSettings(Strict):
    format: (
        Annotated[
            TextFormat | JsonObjectFormat | FlatSchemaFormat, Field(discriminator="type"), BeforeValidator(check_format)
        ]
        | None
    ) = None
    verbosity: Literal["medium"] | None = None  # which is none in particular


class ReasoningSettings(Strict):
    effort: Text | None = None  # for templates that have such a variable


def _check_false(value: bool) -> bool:
    """A literal False would let 0 pass."""
    if value:
        raise PydanticCustomError("false", "Input should be false")
    return value


Never = Annotated[bool, AfterValidator(_check_false), Field(json_schema_extra={"const": False})]


class Plainly(Strict):
    include_obfuscation: Never | None = None


def _check_kind(tool: Any) -> Any:
    """Ahead of what a function needs, which a tool of another kind has not."""
    if isinstance(tool, dict) and tool.get("type") not in (None, "function"):
        raise PydanticCustomError("kind", "The only tools here are functions")
    return tool


class ResponseTool(FunctionDefinition):
    """As a chat's, without a level."""

    type: Literal["function"]


class ToolChosen(Strict):
    type: Literal["function"]
    name: FunctionName

    @property
    def named(self) -> ToolNamed:
        return ToolNamed(type="function", function=FunctionNamed(name=self.name))


class ToolsChosenFrom(Strict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChosen], Field(min_length=1)]

    @property
    def allowed(self) -> AllowedTools:
        tools = [tool.named for tool in self.tools]
        return AllowedTools(type="allowed_tools", allowed_tools=ToolsAllowed(mode=self.mode, tools=tools))


ResponseToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("mode")]
    | Annotated[ToolChosen, Tag("named")]
    | Annotated[ToolsChosenFrom, Tag("allowed")],
    Discriminator(kind_of_choice),
]


def _check_names(tools: list[ResponseTool]) -> list[ResponseTool]:
    if len({tool.name for tool in tools}) < len(tools):
        raise PydanticCustomError("unique", "No two functions should have the same name")
    return tools


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
    reasoning: ReasoningSettings = ReasoningSettings()
    chat_template_kwargs: TemplateOptions = Field(default={})

    tools: Annotated[
        list[Annotated[ResponseTool, BeforeValidator(_check_kind)]],
        Field(max_length=MAX_TOOLS),
        AfterValidator(_check_names),
    ] = Field(default=[])
    tool_choice: ResponseToolChoice = "auto"
    parallel_tool_calls: bool = True

    # Whose turn it is (docs/responses.md).
    previous_response_id: Text | None = None
    store: bool = True

    # What there is only one way for here.
    background: Never = False
    service_tier: Literal["auto", "default"] = "default"
    stream_options: Plainly | None = None

    # More hints.
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None

    @property
    def logprobs(self) -> bool:
        return LOGPROBS in self.include

    @property
    def response_format(self) -> TextFormat | JsonObjectFormat | JsonSchemaFormat | None:
        """As a chat's."""
        asked = self.text.format
        if isinstance(asked, FlatSchemaFormat):
            return JsonSchemaFormat.model_construct(type="json_schema", json_schema=asked)
        return asked

    @property
    def choice(self) -> ToolChoice:
        """As a chat's."""
        match self.tool_choice:
            case ToolChosen() as chosen:
                return chosen.named
            case ToolsChosenFrom() as chosen:
                return chosen.allowed
            case mode:
                return mode

    def chat(self, messages: Sequence[Message]) -> ChatRequest:
        """The same as a chat, with all that was said."""
        said: list[Any] = [Said(message) for message in messages]
        return ChatRequest.model_construct(
            **{name: getattr(self, name) for name in Generation.model_fields},
            messages=said,
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.logprobs,
            top_logprobs=self.top_logprobs,
            response_format=self.response_format,
            chat_template_kwargs=self.chat_template_kwargs,
            reasoning_effort=self.reasoning.effort,
            tools=[FunctionTool.model_construct(type="function", function=tool) for tool in self.tools],
            tool_choice=self.choice,
            parallel_tool_calls=self.parallel_tool_calls,
            store=self.store,
        )
