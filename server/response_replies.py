"""What clients of the Responses API get, in OpenAI's shapes."""

from typing import Any, Literal

import msgspec

from server.replies import SessionBlock, Timings, TokenLogprob

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []  # where they are included


class ThoughtPart(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[TextPart]


class ThoughtItem(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["reasoning"] = "reasoning"
    status: Status
    summary: list[Any] = []
    content: list[ThoughtPart]


class CallItem(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function_call"] = "function_call"
    status: Status
    call_id: str
    name: str
    arguments: str


Part = TextPart | ThoughtPart
Item = MessageItem | ThoughtItem | CallItem


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int  # all that was read


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    code: Literal["server_error"] = "server_error"
    message: str


class Incomplete(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class TextSettings(msgspec.Struct, frozen=True):
    format: dict[str, Any]  # as it was asked
    verbosity: Literal["medium"] = "medium"


class ReasoningSettings(msgspec.Struct, frozen=True):
    effort: str | None
    summary: None = None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """As it stands: in the end, or at an event of its stream."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status = "in_progress"
    background: Literal[False] = False
    completed_at: int | None = None
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: Any  # as it was asked, as are the next
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]
    system_fingerprint: str  # ours, as are the next two, which come with the usage
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    session: SessionBlock | msgspec.UnsetType = msgspec.UNSET


class Event(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    sequence_number: int


class ResponseEvent(Event, frozen=True, kw_only=True):
    response: ResponseObject


class ItemEvent(Event, frozen=True, kw_only=True):
    output_index: int
    item: Item


class PartEvent(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0
    part: Part


class DeltaEvent(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET  # of what is answered


class ArgumentsDeltaEvent(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    name: str
    arguments: str


class DoneEvent(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] | msgspec.UnsetType = msgspec.UNSET


class ErrorEvent(Event, frozen=True, kw_only=True):
    code: str | None
    message: str
    param: str | None
