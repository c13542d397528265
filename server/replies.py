"""What clients get, in OpenAI's shapes and order of fields."""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls"]


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None  # null where there are calls alone
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET  # where the model thinks before it answers
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]  # also where they are a part of a character
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: Message
    logprobs: Logprobs | None = None
    finish_reason: FinishReason


class DeltaFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class DeltaCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to a call. All but its arguments comes with the first."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: Literal["function"] | msgspec.UnsetType = msgspec.UNSET
    function: DeltaFunction


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DeltaCall] | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0  # that "prediction" guessed, and the model chose
    rejected_prediction_tokens: int = 0  # that it guessed, and the model did not choose


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Timings(msgspec.Struct, frozen=True):
    """As llama.cpp's: tokens of the prompt that were cached and read, tokens generated, and how long that took."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


class SessionBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Of the conversation that a request belongs to, behind its answer. Tokens are counted as the engine holds them."""

    id: str
    matched: str  # how the request's messages met the session's: new, or a word of server.reconcile
    turns: int
    tokens: int  # seen, for ever
    live: int  # of which the next token's query sees so many
    evicted: int
    pinned: int  # that never leave
    capacity: int  # most that are live
    rebuilt: str | None = None  # why all was read anew, where it was
    kept: bool  # whether this turn is remembered


class Identity(msgspec.Struct, frozen=True):
    """What an answer and all chunks of it have in common."""

    id: str
    created: int  # seconds since 1970
    model: str
    system_fingerprint: str  # of all that decides which text a seed gives


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    timings: Timings
    session: SessionBlock  # ours


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET  # null in all chunks but the last, where it was asked for
    timings: Timings | msgspec.UnsetType = msgspec.UNSET  # beside the usage
    session: SessionBlock | msgspec.UnsetType = msgspec.UNSET  # ours, beside the usage


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Of each token; null where nothing comes before it."""

    text_offset: list[int]  # characters of the choice's text before it
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]  # the likeliest, and the token itself


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Of a whole completion, or of a chunk of it, which has no reason but at its end."""

    index: int = 0
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole one, or a chunk."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "sinkahead"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class SessionCard(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that the server keeps."""

    id: str
    object: Literal["session"] = "session"
    created: int
    last_used: int
    state: Literal["device", "host", "disk"]  # from where its next turn would come; host: no GPU's, and not the disk's
    running: bool
    turns: int
    messages: int
    tokens: int  # as of SessionBlock
    live: int
    evicted: int
    pinned: int
    capacity: int
    bytes: int  # of its cache, where it is


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[SessionCard]
    has_more: bool


class SessionDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: bool = True
