"""An answer as a response: one object, or a stream of events."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from server.answer import Answer
from server.errors import ApiError
from server.piece import Piece
from server.replies import Identity, SessionBlock
from server.reply import Reply
from server.response_id import ResponseId
from server.response_items import ResponseItems
from server.response_replies import (
    ErrorEvent,
    Failure,
    Incomplete,
    InputTokensDetails,
    OutputTokensDetails,
    ReasoningSettings,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
    Status,
    TextSettings,
)
from server.response_schemas import ResponseRequest, ResponseTool
from server.sse import event
from server.vocabulary import Vocabulary


class ResponseReply(Reply):
    """Its stream ends with the whole response, however that went; there is no [DONE]."""

    def __init__(
        self,
        identity: Identity,
        id_: ResponseId,
        asked: ResponseRequest,
        answer: Answer,
        describe: Callable[[], SessionBlock],
        *,
        forgets: bool,
        vocabulary: Vocabulary | None,
    ) -> None:
        """describe: the session, after the answer. forgets: whether the model sees the latest of a conversation only.
        vocabulary: where logprobs are told.
        """
        super().__init__(identity, [answer], choices=1, include_usage=True)
        self._answer, self._describe = answer, describe
        self._items = ResponseItems(id_, vocabulary)
        self._response = ResponseObject(
            id=identity.id,
            created_at=identity.created,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            model=identity.model,
            parallel_tool_calls=asked.parallel_tool_calls,
            previous_response_id=asked.previous_response_id,
            prompt_cache_key=asked.prompt_cache_key,
            reasoning=ReasoningSettings(asked.reasoning.effort),
            safety_identifier=asked.safety_identifier,
            store=asked.store,
            temperature=asked.temperature,
            text=TextSettings(_format(asked)),
            tool_choice=choice if isinstance(choice := asked.tool_choice, str) else choice.model_dump(),
            tools=[_tool(tool) for tool in asked.tools],
            top_logprobs=asked.top_logprobs or 0,
            top_p=asked.top_p,
            truncation=asked.truncation or ("auto" if forgets else "disabled"),
            user=asked.user,
            metadata=asked.metadata or {},
            system_fingerprint=identity.system_fingerprint,
        )

    def _whole(self, pieces: Sequence[Sequence[Piece]]) -> ResponseObject:
        for piece in pieces[0]:
            self._more(0, piece)
        self._last(0)
        return self._ended()

    def _first(self) -> list[msgspec.Struct]:
        return [self._told("created", self._response), self._told("in_progress", self._response)]

    def _more(self, index: int, piece: Piece) -> list[msgspec.Struct]:
        return list(self._items.push(piece))

    def _last(self, index: int) -> list[msgspec.Struct]:
        return list(self._items.end(self._status))

    def _counted(self) -> ResponseEvent:
        return self._told(self._status, self._ended())

    def _encode(self, chunk: msgspec.Struct) -> bytes:
        return event(msgspec.json.encode(chunk), getattr(chunk, "type", None))

    def _failed(self, error: ApiError) -> bytes:
        """As OpenAI's: an error by itself, for those who look at nothing else, and what came of the response."""
        body = error.body
        told = ErrorEvent(
            type="error", sequence_number=self._items.number(), code=body.code, message=body.message, param=body.param
        )
        failed = msgspec.structs.replace(
            self._response, status="failed", error=Failure(message=body.message), output=self._items.items
        )
        return self._encode(told) + self._encode(self._told("failed", failed))

    _done = b""

    def _told(self, what: str, response: ResponseObject) -> ResponseEvent:
        return ResponseEvent(type=f"response.{what}", sequence_number=self._items.number(), response=response)

    @property
    def _status(self) -> Status:
        return "incomplete" if self._answer.transcript.finish_reason == "length" else "completed"

    def _ended(self) -> ResponseObject:
        usage, status = self._usage(), self._status
        cached = usage.prompt_tokens_details.cached_tokens
        return msgspec.structs.replace(
            self._response,
            status=status,
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details=Incomplete() if status == "incomplete" else None,
            output=self._items.items,
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=InputTokensDetails(cached, usage.prompt_tokens - cached),
                output_tokens=usage.completion_tokens,
                output_tokens_details=OutputTokensDetails(usage.completion_tokens_details.reasoning_tokens),
                total_tokens=usage.total_tokens,
            ),
            timings=self._timings(),
            session=self._describe(),
        )


def _format(asked: ResponseRequest) -> dict[str, Any]:
    told = asked.text.format
    return {"type": "text"} if told is None else told.model_dump(by_alias=True, exclude_none=True)


def _tool(tool: ResponseTool) -> dict[str, Any]:
    told = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", **told}
