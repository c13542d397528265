"""An answer as a chat completion: one object, or a stream of chunks."""

import logging
from collections.abc import AsyncIterator

import msgspec

from server.answer import Answer
from server.errors import ApiError, internal
from server.replies import (
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Delta,
    FinishReason,
    Identity,
    Message,
    Usage,
)
from server.sse import DONE, PING, event

logger = logging.getLogger(__name__)


class ChatReply:
    """Either `whole` or `events` is to be used, once."""

    def __init__(self, identity: Identity, answer: Answer, prompt_tokens: int, include_usage: bool) -> None:
        self._identity = identity
        self._answer = answer
        self._prompt_tokens = prompt_tokens
        self._include_usage = include_usage

    async def whole(self) -> bytes:
        """Raises `ApiError`."""
        text = await self._answer.text()
        reason = self._answer.transcript.finish_reason
        assert reason is not None
        identity = msgspec.structs.asdict(self._identity)
        choice = Choice(message=Message(content=text), finish_reason=reason)
        return msgspec.json.encode(ChatCompletion(**identity, choices=[choice], usage=self._usage()))

    async def events(self, ping_seconds: float) -> AsyncIterator[bytes]:
        """A failure is an event, too, and the end always [DONE]: a stream that just ends passes for a whole one."""
        try:
            yield self._chunk(Delta(role="assistant", content=""))
            async for piece in self._answer.pieces(ping_seconds):
                yield self._chunk(Delta(content=piece)) if piece else PING
            yield self._chunk(Delta(), self._answer.transcript.finish_reason)
            if self._include_usage:
                yield self._event([], self._usage())
        except ApiError as error:
            yield event(error.encode())
        except Exception:
            logger.exception("A stream failed")
            yield event(internal().encode())
        yield DONE

    def _chunk(self, delta: Delta, reason: FinishReason | None = None) -> bytes:
        usage = None if self._include_usage else msgspec.UNSET
        return self._event([ChunkChoice(delta=delta, finish_reason=reason)], usage)

    def _event(self, choices: list[ChunkChoice], usage: Usage | msgspec.UnsetType | None) -> bytes:
        identity = msgspec.structs.asdict(self._identity)
        return event(msgspec.json.encode(ChatChunk(**identity, choices=choices, usage=usage)))

    def _usage(self) -> Usage:
        return Usage.of(self._prompt_tokens, self._answer.transcript.num_tokens)
