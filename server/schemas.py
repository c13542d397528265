"""Requests for answers, as clients send them."""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from decoding.turn import Drafting, StrategyName
from server.format_schemas import JsonObjectFormat, JsonSchemaFormat, TextFormat, check_format
from server.message_schemas import ChatMessage, fast
from server.strict import Content, Strict, Text, TextPart, as_parts, check_unicode
from server.tool_schemas import MAX_TOOLS, AllowedTools, FunctionTool, ToolChoice, ToolNamed, check_tools
from server.tools.definitions import Choice, Tools
from server.tools.dialect import nests_deeper

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_STOP_IDS = 128
MAX_LOGPROBS = 20
MAX_OPTIONS = 2000  # characters
MAX_BIASES = 300
MAX_CHOICES = 128
SESSION_ID = "[A-Za-z0-9._:-]{1,128}"


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


def _check_token_id(key: str) -> str:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and key == str(int(key))):
        raise PydanticCustomError("token_id", 'Keys should be token ids, as "1234"')
    return key


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(check_unicode)]
OutputTokens = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
SessionId = Annotated[str, Field(pattern=f"^{SESSION_ID}$")]
TokenId = Annotated[str, AfterValidator(_check_token_id)]
PromptId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class StreamOptions(Strict):
    include_usage: bool = False


class Prediction(Strict):
    """What the answer is expected to be. It changes no text, only how fast it comes."""

    type: Literal["content"]
    content: Annotated[list[TextPart], BeforeValidator(as_parts, Content)]

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
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIASES)] = Field(default={})
    min_tokens: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Annotated[
        list[StopString],
        Field(max_length=MAX_STOPS),
        BeforeValidator(_as_list, StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)]),
    ] = Field(default=[])
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_STOP_IDS)] = Field(
        default=[]
    )
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
    chat_template_kwargs: TemplateOptions = Field(default={})
    reasoning_effort: Text | None = None  # for templates that have such a variable
    continue_final_message: bool = False  # the answer goes on with the last message, the assistant's
    add_generation_prompt: bool | None = None  # false is said with the former by who is used to it
    tools: Annotated[list[FunctionTool], Field(min_length=1, max_length=MAX_TOOLS), AfterValidator(check_tools)] = (
        Field(default=[])
    )
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
