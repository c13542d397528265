"""An answer as a chat completion: one object, or a stream of chunks."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from server.answer import Answer, LateAnswer
from server.errors import ApiError, internal
from server.merged import merged
from server.replies import (
    CalledFunction,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Delta,
    FinishReason,
    Identity,
    Message,
    SessionBlock,
    ToolCall,
    Usage,
)
from server.sse import DONE, PING, event
from server.transcript import Transcript

logger = logging.getLogger(__name__)


class ChatReply:
    """Either `whole` or `events` is to be used, once."""

    def __init__(
        self,
        identity: Identity,
        answers: Sequence[Answer | LateAnswer],
        describe: Callable[[], SessionBlock],
        *,
        include_usage: bool,
    ) -> None:
        """answers: one for each choice, an `Answer` first. describe: the session, after that."""
        self._identity = identity
        self._answers = answers
        self._describe = describe
        self._include_usage = include_usage

    async def whole(self) -> bytes:
        """Raises `ApiError`."""
        async for _ in merged([answer.pieces() for answer in self._answers]):
            pass
        choices = []
        for index, answer in enumerate(self._answers):
            reason = answer.transcript.finish_reason
            assert reason is not None
            choices.append(Choice(index=index, message=_message(answer.transcript), finish_reason=reason))
        identity = msgspec.structs.asdict(self._identity)
        return msgspec.json.encode(
            ChatCompletion(**identity, choices=choices, usage=self._usage(), session=self._describe())
        )

    async def events(self, ping_seconds: float) -> AsyncIterator[bytes]:
        """A failure is an event, too, and the end always [DONE]: a stream that just ends passes for a whole one."""
        try:
            for index in range(len(self._answers)):
                yield self._chunk(index, Delta(role="assistant", content=""))
            async for index, piece in merged([answer.pieces(ping_seconds) for answer in self._answers]):
                if piece is None:
                    yield self._chunk(index, Delta(), self._answers[index].transcript.finish_reason)
                else:
                    calls = self._answers[index].transcript.take_calls()
                    if piece or not calls:
                        yield self._chunk(index, Delta(content=piece)) if piece else PING
                    for call in calls:  # one a chunk: clients put them together by index
                        yield self._chunk(index, Delta(tool_calls=[call]))
            if self._include_usage:
                yield self._event([], self._usage(), self._describe())
        except ApiError as error:
            yield event(error.encode())
        except Exception:
            logger.exception("A stream failed")
            yield event(internal().encode())
        yield DONE

    def _chunk(self, index: int, delta: Delta, reason: FinishReason | None = None) -> bytes:
        usage = None if self._include_usage else msgspec.UNSET
        return self._event([ChunkChoice(index=index, delta=delta, finish_reason=reason)], usage)

    def _event(
        self,
        choices: list[ChunkChoice],
        usage: Usage | msgspec.UnsetType | None,
        session: SessionBlock | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        identity = msgspec.structs.asdict(self._identity)
        return event(msgspec.json.encode(ChatChunk(**identity, choices=choices, usage=usage, session=session)))

    def _usage(self) -> Usage:
        first = self._answers[0]
        assert isinstance(first, Answer)
        generated = sum(answer.transcript.num_tokens for answer in self._answers)
        return Usage.of(first.prompt_tokens, generated, first.cached_tokens)


def _message(transcript: Transcript) -> Message:
    calls = [ToolCall(id=call["id"], function=CalledFunction(**call["function"])) for call in transcript.calls.made]
    return Message(content=transcript.text or (None if calls else ""), tool_calls=calls or msgspec.UNSET)
