"""What clients may ask for. Strict: nothing is coerced, null is absent, and nothing is accepted that has no effect."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from decoding.turn import Drafting, StrategyName
from server.chain import Message
from server.tools.definitions import Choice, Function, Tools
from server.tools.dialect import nests_deeper

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_STOP_IDS = 128
MAX_LOGPROBS = 20
MAX_OPTIONS = 2000  # characters
MAX_BIASES = 300
MAX_CHOICES = 128
MAX_TOOLS = 128
FORMATS = ("text", "json_object", "json_schema")
ROLES = frozenset({"system", "developer", "user", "assistant"})
SESSION_ID = "[A-Za-z0-9._:-]{1,128}"


def _check_unicode(text: str) -> str:
    """JSON can spell half of a surrogate pair, which no tokenizer takes and no encoder writes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "Text should be valid Unicode, without lone surrogates") from None
    return text


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and content:
        return content
    raise PydanticCustomError("content", "Input should be a string or a list of text parts")


def _as_list(stop: Any) -> Any:
    if isinstance(stop, str):
        return [stop]
    if isinstance(stop, list):
        return stop
    raise PydanticCustomError("stop", "Input should be a string or a list of strings")


def _as_prompts(prompt: Any) -> Any:
    """One text, one list of ids, or a list of either."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return [prompt]
        if all(isinstance(one, str) or (isinstance(one, list) and _are_ids(one)) for one in prompt):
            return prompt
    raise PydanticCustomError("prompt", "Input should be a string, a list of token ids, or a list of either")


def _are_ids(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < 2**31 for value in values)


def check_format(response_format: Any) -> Any:
    """The union's own words would repeat what the client sent."""
    if not isinstance(response_format, dict):
        raise PydanticCustomError("response_format", "Input should be an object")
    if response_format.get("type") not in FORMATS:
        raise PydanticCustomError("response_format", "Its type should be text, json_object or json_schema")
    return response_format


def _check_token_id(key: str) -> str:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and key == str(int(key))):
        raise PydanticCustomError("token_id", 'Keys should be token ids, as "1234"')
    return key


Text = Annotated[str, AfterValidator(_check_unicode)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(_check_unicode)]
OutputTokens = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
SessionId = Annotated[str, Field(pattern=f"^{SESSION_ID}$")]
TokenId = Annotated[str, AfterValidator(_check_token_id)]
PromptId = Annotated[int, Field(ge=0, lt=2**31)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class TextPart(Strict):
    type: Literal["text"]
    text: Text


Content = str | Annotated[list[TextPart], Field(min_length=1)]  # as it is sent


class CalledFunction(Strict):
    name: Text
    arguments: Text  # as they were generated: they may be no JSON
    parsed_arguments: Any = None  # of OpenAI's SDK, which sends back what it has made of them


class ToolCall(Strict):
    id: Annotated[str, Field(min_length=1), AfterValidator(_check_unicode)]
    type: Literal["function"]
    function: CalledFunction
    index: int | None = None  # of those who send back what they streamed

    def plain(self) -> dict[str, Any]:
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {"id": self.id, "type": "function", "function": function}


def _only_of(role: str) -> AfterValidator:
    def check(value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("role", role) != role:
            raise PydanticCustomError("role", f"Only messages with role '{role}' have it")
        return value

    return AfterValidator(check)


def _content(content: Any, info: ValidationInfo) -> Any:
    """Text, which only a message with calls may lack."""
    if content is not None:
        return _as_parts(content)
    if info.data.get("tool_calls"):
        return []
    raise PydanticCustomError("missing", "Field required")


def _tool_call_id(value: Any, info: ValidationInfo) -> Any:
    if value is None and info.data.get("role") == "tool":
        raise PydanticCustomError("missing", "Field required")
    return value


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: Annotated[list[ToolCall], Field(min_length=1), _only_of("assistant")] | None = None
    tool_call_id: Annotated[Text | None, _only_of("tool"), BeforeValidator(_tool_call_id)] = Field(
        default=None, validate_default=True
    )
    content: Annotated[list[TextPart], BeforeValidator(_content, Content | None)] = Field(
        default=None, validate_default=True
    )
    name: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_unicode)] | None = None
    # What an assistant thought before, for templates that show it.
    reasoning_content: Annotated[Text, _only_of("assistant")] | None = None

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


class StreamOptions(Strict):
    include_usage: bool = False


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Strict):
    """The answer is held to it whether or not it is called strict. Name and description are hints."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: Text | None = None
    body: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool = False


class JsonSchemaFormat(Strict):
    """JSON that a schema validates."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class Prediction(Strict):
    """What the answer is expected to be. It changes no text, only how fast it comes."""

    type: Literal["content"]
    content: Annotated[list[TextPart], BeforeValidator(_as_parts, Content)]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


class Lookahead(Strict):
    """How this answer is drafted, in place of the server's own way. It changes no text, only how fast it comes."""

    strategy: StrategyName = "auto"
    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None

    @property
    def drafting(self) -> Drafting:
        """Its sizes are still to be resolved."""
        return Drafting(strategy=self.strategy, window=self.window, ngram=self.ngram, guesses=self.guesses)


def _check_parameters(schema: Any) -> Any:
    if nests_deeper(schema):
        raise PydanticCustomError("schema", "The schema nests too deep")
    try:
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise PydanticCustomError("schema", "The schema should be JSON, of valid Unicode") from None
    if schema.get("type", "object") != "object":
        raise PydanticCustomError("schema", "The schema's type should be 'object'")
    return schema


class FunctionDefinition(Strict):
    name: FunctionName
    description: Text | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_check_parameters)] | None = None
    strict: bool = False

    @property
    def function(self) -> Function:
        parameters = {} if self.parameters is None else {"parameters": {"type": "object"} | self.parameters}
        return Function(self.name, self.description, **parameters, strict=self.strict)


class FunctionTool(Strict):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionNamed(Strict):
    name: FunctionName


class ToolNamed(Strict):
    type: Literal["function"]
    function: FunctionNamed


class ToolsAllowed(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolNamed], Field(min_length=1)]


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: ToolsAllowed


def kind_of_choice(choice: Any) -> str:
    """So that what is wrong with one kind of choice is not told in the words of another."""
    if not isinstance(choice, dict):
        return "mode"
    return "allowed" if choice.get("type") == "allowed_tools" else "named"


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("mode")]
    | Annotated[ToolNamed, Tag("named")]
    | Annotated[AllowedTools, Tag("allowed")],
    Discriminator(kind_of_choice),
]


def _check_tools(tools: list[FunctionTool]) -> list[FunctionTool]:
    if len({tool.function.name for tool in tools}) < len(tools):
        raise PydanticCustomError("unique", "No two functions should have the same name")
    return tools


class NewSession(Strict):
    """Body of POST /v1/sessions and /v1/sessions/{id}/fork, which need none."""

    id: SessionId | None = None  # of the new one; else the server makes one that nobody can guess


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Values for a template's variables."""
    if nests_deeper(options):
        raise PydanticCustomError("options", "The values nest too deep")
    try:
        text = json.dumps(options, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        raise PydanticCustomError("options", "The values should be JSON, of valid Unicode") from None
    if len(text) > MAX_OPTIONS:
        raise PydanticCustomError("options", f"The values should be JSON of at most {MAX_OPTIONS} characters")
    return options


TemplateOptions = Annotated[dict[Text, Any], AfterValidator(_check_options)]


class Generation(Strict):
    """What all APIs have in common."""

    model: Text
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] = 1.0  # closer to 0 a quotient could overflow
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIASES)] = {}
    min_tokens: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[
        list[StopString],
        Field(max_length=MAX_STOPS),
        BeforeValidator(_as_list, StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)]),
    ] = []
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOP_IDS)] = []
    ignore_eos: bool = False  # the model's end tokens are tokens like others

    lookahead: Lookahead | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0  # lower is served first

    # Hints, which ask for nothing.
    user: Text | None = None
    metadata: dict[Text, Text] | None = None


class ChoicesRequest(Generation):
    """What chats and completions have in common."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(ChoicesRequest):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1), WrapValidator(fast)]
    max_completion_tokens: OutputTokens | None = None
    max_tokens: OutputTokens | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: (
        Annotated[
            TextFormat | JsonObjectFormat | JsonSchemaFormat,
            Field(discriminator="type"),
            BeforeValidator(check_format),
        ]
        | None
    ) = None
    chat_template_kwargs: TemplateOptions = {}
    reasoning_effort: Text | None = None  # for templates that have such a variable
    continue_final_message: bool = False  # the answer goes on with the last message, the assistant's
    add_generation_prompt: bool | None = None  # false is said with the former by who is used to it
    tools: Annotated[list[FunctionTool], Field(min_length=1, max_length=MAX_TOOLS), AfterValidator(_check_tools)] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    # What the answer is expected to be: it changes how fast it comes, and nothing of it.
    prediction: Prediction | None = None

    # Whose turn it is (docs/sessions.md).
    session_id: SessionId | None = None
    session_mode: Literal["append"] | None = None
    store: bool | None = None  # false: nothing of it reaches the disk

    @property
    def offered(self) -> Tools:
        return Tools([tool.function.function for tool in self.tools])

    @property
    def is_constrained(self) -> bool:
        """Whether the answer must follow a grammar."""
        is_format = self.response_format is not None and self.response_format.type != "text"
        return is_format or self.choice.constrains(self.offered)

    @property
    def choice(self) -> Choice:
        parallel = self.parallel_tool_calls is not False
        match self.tool_choice:
            case ToolNamed(function=named):
                return Choice("required", frozenset({named.name}), parallel=False)
            case AllowedTools(allowed_tools=allowed):
                names = frozenset(tool.function.name for tool in allowed.tools)
                return Choice(allowed.mode, names, parallel)
            case None:
                return Choice(parallel=parallel)
            case mode:
                return Choice(mode, parallel=parallel)

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def has_begun(self) -> bool:
        """Whether the last message can be gone on with."""
        last = self.messages[-1].plain()
        return len(self.messages) > 1 and last["role"] == "assistant" and bool(last["content"]) and len(last) == 2

    @property
    def options(self) -> dict[str, Any]:
        """Values for the chat template's variables."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return effort | self.chat_template_kwargs

    @property
    def told_logprobs(self) -> int | None:
        """So many likeliest tokens are told with each; None: no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


T = TypeVar("T")
Prompts = Annotated[list[T], Field(min_length=1)]  # as they are sent


class CompletionRequest(ChoicesRequest):
    """Body of POST /v1/completions."""

    prompt: Annotated[
        list[Text | list[PromptId]],
        Field(min_length=1),
        BeforeValidator(_as_prompts, Text | Prompts[PromptId] | Prompts[Text | Prompts[PromptId]]),
    ]
    max_tokens: Annotated[int, Field(ge=0)] = 16
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: int | None = None  # as many as n: none is thrown away
