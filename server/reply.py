"""Answers on their way to the client: one object, or a stream of chunks. What both APIs have in common."""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from server.answer import Answer, LateAnswer
from server.errors import ApiError, internal
from server.merged import merged
from server.piece import Piece
from server.replies import CompletionTokensDetails, Identity, PromptTokensDetails, Timings, Usage
from server.sse import DONE, PING, event

logger = logging.getLogger(__name__)


class Reply(ABC):
    """Either `whole` or `events` is to be used, once."""

    def __init__(
        self, identity: Identity, answers: Sequence[Answer | LateAnswer], *, choices: int, include_usage: bool
    ) -> None:
        """answers: of each prompt as many as choices, its prompt read for the first of them."""
        self._identity = identity
        self._answers = answers
        self._choices = choices
        self._include_usage = include_usage

    async def whole(self) -> bytes:
        """Raises `ApiError`."""
        pieces: list[list[Piece]] = [[] for _ in self._answers]
        async for index, piece in merged([answer.pieces() for answer in self._answers]):
            if piece:
                pieces[index].append(piece)
        return msgspec.json.encode(self._whole(pieces))

    async def events(self, ping_seconds: float) -> AsyncIterator[bytes]:
        """A failure is told, too, and the end always: a stream that just ends passes for a whole one."""
        try:
            for chunk in self._first():
                yield self._encode(chunk)
            async for index, piece in merged([answer.pieces(ping_seconds) for answer in self._answers]):
                chunks = self._chunks(index, piece)
                for chunk in chunks:
                    yield self._encode(chunk)
                if not chunks:
                    yield PING
            if self._include_usage:
                yield self._encode(self._counted())
        except ApiError as error:
            yield self._failed(error)
        except Exception:
            logger.exception("A stream failed")
            yield self._failed(internal())
        if self._done:
            yield self._done

    def _chunks(self, index: int, piece: Piece | None) -> list[msgspec.Struct]:
        """piece: None at the end of an answer."""
        if piece is None:
            return self._last(index)
        return self._more(index, piece) if piece else []

    def figures(self) -> dict[str, Any]:
        """For the log: of what has come until now, whatever becomes of the rest."""
        begun = [answer.begun for answer in self._answers if answer.has_begun]
        prompts = [answer.begun for answer in self._answers[:: self._choices] if answer.has_begun]
        tokens = sum(answer.transcript.num_tokens for answer in begun)
        steps = tokens - sum(answer.transcript.num_accepted for answer in begun)
        reasons = {answer.transcript.finish_reason or "none" for answer in self._answers}
        return {
            "prompt_tokens": sum(answer.prompt_tokens for answer in prompts),
            "cached_tokens": sum(answer.cached_tokens for answer in prompts),
            "completion_tokens": tokens,
            "finish": "+".join(sorted(reasons)),
            "tokens_per_step": round(tokens / steps, 2) if steps > 0 else 0.0,
        }

    @abstractmethod
    def _whole(self, pieces: Sequence[Sequence[Piece]]) -> msgspec.Struct:
        """pieces: of each answer, all of them."""

    @abstractmethod
    def _first(self) -> list[msgspec.Struct]:
        """Chunks that come before all answers."""

    @abstractmethod
    def _more(self, index: int, piece: Piece) -> list[msgspec.Struct]:
        """Chunks of a piece that is not empty."""

    @abstractmethod
    def _last(self, index: int) -> list[msgspec.Struct]:
        """Chunks at the end of an answer."""

    @abstractmethod
    def _counted(self) -> msgspec.Struct:
        """The chunk with the usage."""

    _done = DONE  # the end of every stream

    def _encode(self, chunk: msgspec.Struct) -> bytes:
        return event(msgspec.json.encode(chunk))

    def _failed(self, error: ApiError) -> bytes:
        """Tells of a failure in the middle."""
        return event(error.encode())

    @property
    def _no_usage(self) -> msgspec.UnsetType | None:
        """The usage in all chunks but that one."""
        return None if self._include_usage else msgspec.UNSET

    @property
    def _prompts(self) -> list[Answer]:
        """One answer to each."""
        return [answer.begun for answer in self._answers[:: self._choices]]

    def _usage(self) -> Usage:
        transcripts = [answer.transcript for answer in self._answers]
        prompt = sum(answer.prompt_tokens for answer in self._prompts)
        generated = sum(transcript.num_tokens for transcript in transcripts)
        accepted = sum(transcript.accepted["prediction"] for transcript in transcripts)
        drafted = sum(transcript.drafted["prediction"] for transcript in transcripts)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=generated,
            total_tokens=prompt + generated,
            prompt_tokens_details=PromptTokensDetails(sum(answer.cached_tokens for answer in self._prompts)),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=sum(transcript.num_thought for transcript in transcripts),
                accepted_prediction_tokens=accepted,
                rejected_prediction_tokens=drafted - accepted,
            ),
        )

    def _timings(self) -> Timings:
        answers = [answer.begun for answer in self._answers]
        prompt, generated = sum(one.forwarded_tokens for one in self._prompts), self._usage().completion_tokens
        prompt_ms = 1e3 * max(one.seconds[0] for one in self._prompts)
        generated_ms = 1e3 * max(one.seconds[1] for one in answers)
        return Timings(
            cache_n=sum(one.cached_tokens for one in self._prompts),
            prompt_n=prompt,
            prompt_ms=round(prompt_ms, 3),
            prompt_per_second=_rate(prompt, prompt_ms),
            predicted_n=generated,
            predicted_ms=round(generated_ms, 3),
            predicted_per_second=_rate(generated, generated_ms),
            draft_n=sum(one.transcript.num_drafted for one in answers),
            draft_n_accepted=sum(one.transcript.num_accepted for one in answers),
        )


def _rate(tokens: int, milliseconds: float) -> float:
    """A second; 0 where there is no telling."""
    return round(1e3 * tokens / milliseconds, 3) if milliseconds else 0.0
