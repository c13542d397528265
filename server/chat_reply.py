"""An answer as a chat completion: one object, or a stream of chunks."""

from collections.abc import Callable, Sequence

import msgspec

from server.answer import Answer, LateAnswer
from server.piece import Piece, Told
from server.replies import (
    CalledFunction,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Delta,
    Identity,
    Logprobs,
    Message,
    SessionBlock,
    TokenLogprob,
    ToolCall,
    TopLogprob,
)
from server.reply import Reply
from server.transcript import Transcript
from server.vocabulary import Vocabulary


class ChatReply(Reply):
    """Choices of one conversation."""

    def __init__(
        self,
        identity: Identity,
        answers: Sequence[Answer | LateAnswer],
        describe: Callable[[], SessionBlock],
        *,
        vocabulary: Vocabulary | None,
        include_usage: bool,
    ) -> None:
        """answers: one for each choice, an `Answer` first. describe: the session, after that. vocabulary: where
        logprobs are told.
        """
        super().__init__(identity, answers, choices=len(answers), include_usage=include_usage)
        self._describe = describe
        self._vocabulary = vocabulary

    def _whole(self, pieces: Sequence[Sequence[Piece]]) -> ChatCompletion:
        choices = []
        for index, answer in enumerate(self._answers):
            told, reason = answer.transcript, answer.transcript.finish_reason
            assert reason is not None
            message = _message(told)
            logprobs = self._logprobs([told for piece in pieces[index] for told in piece.tokens])
            choices.append(Choice(index=index, message=message, logprobs=logprobs, finish_reason=reason))
        return ChatCompletion(
            **msgspec.structs.asdict(self._identity),
            choices=choices,
            usage=self._usage(),
            timings=self._timings(),
            session=self._describe(),
        )

    def _first(self) -> list[msgspec.Struct]:
        greeting = Delta(role="assistant", content="")
        return [self._chunk(ChunkChoice(index=index, delta=greeting)) for index in range(len(self._answers))]

    def _more(self, index: int, piece: Piece) -> list[msgspec.Struct]:
        deltas = [Delta(tool_calls=[call]) for call in piece.calls]  # one a chunk: clients put them together by index
        if piece.text or piece.thought:
            deltas.insert(0, Delta(content=piece.text or None, reasoning_content=piece.thought or None))
        choices = [ChunkChoice(index=index, delta=delta) for delta in deltas]
        choices[0] = msgspec.structs.replace(choices[0], logprobs=self._logprobs(piece.tokens))
        return [self._chunk(choice) for choice in choices]

    def _last(self, index: int) -> list[msgspec.Struct]:
        reason = self._answers[index].transcript.finish_reason
        return [self._chunk(ChunkChoice(index=index, delta=Delta(), finish_reason=reason))]

    def _counted(self) -> ChatChunk:
        return ChatChunk(
            **msgspec.structs.asdict(self._identity),
            choices=[],
            usage=self._usage(),
            timings=self._timings(),
            session=self._describe(),
        )

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        return ChatChunk(**msgspec.structs.asdict(self._identity), choices=[choice], usage=self._no_usage)

    def _logprobs(self, tokens: Sequence[Told]) -> Logprobs | None:
        return None if self._vocabulary is None else Logprobs([entry(told, self._vocabulary) for told in tokens])


def _message(told: Transcript) -> Message:
    calls = [ToolCall(id=call["id"], function=CalledFunction(**call["function"])) for call in told.calls.made]
    return Message(
        content=told.text or (None if calls else ""),
        reasoning_content=told.thought or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )


def entry(told: Told, vocabulary: Vocabulary) -> TokenLogprob:
    """Of a list of logprobs."""
    likeliest = [TopLogprob(*_spelt(token, vocabulary, logprob)) for token, logprob in told.scored.top]
    return TokenLogprob(*_spelt(told.token, vocabulary, told.scored.logprob), likeliest)


def _spelt(token: int, vocabulary: Vocabulary, logprob: float) -> tuple[str, float, list[int]]:
    octets = vocabulary.octets(token)
    return octets.decode(errors="replace"), logprob, list(octets)
