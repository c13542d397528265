"""An answer as a text completion: one object, or a stream of chunks of the same shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from decoding.turn import Scored
from server.answer import Answer, LateAnswer
from server.piece import Piece, Told
from server.replies import Completion, CompletionChoice, CompletionLogprobs, Identity
from server.reply import Reply
from server.vocabulary import Vocabulary


@dataclass(frozen=True)
class Echo:
    """A prompt that is told again, before what follows it."""

    text: str
    tokens: list[int]
    offsets: list[int]  # characters of the text before each token
    scores: Callable[[], list[Scored]]  # of all tokens but the first, once the prompt has been read


class CompletionReply(Reply):
    """Choices of one prompt, or of several."""

    def __init__(
        self,
        identity: Identity,
        answers: Sequence[Answer | LateAnswer],
        echoes: Sequence[Echo] | None,
        *,
        choices: int,
        vocabulary: Vocabulary | None,
        include_usage: bool,
    ) -> None:
        """echoes: of each prompt. vocabulary: where logprobs are told."""
        super().__init__(identity, answers, choices=choices, include_usage=include_usage)
        self._echoes = echoes
        self._vocabulary = vocabulary
        self._begun: set[int] = set()  # answers whose echo has been sent

    def _whole(self, pieces: Sequence[Sequence[Piece]]) -> Completion:
        choices = []
        for index, answer in enumerate(self._answers):
            echo, tokens = self._echo(index), [told for piece in pieces[index] for told in piece.tokens]
            text = (echo.text if echo else "") + answer.transcript.text
            choices.append(
                CompletionChoice(
                    index=index,
                    text=text,
                    logprobs=self._logprobs(index, tokens, echo),
                    finish_reason=answer.transcript.finish_reason,
                )
            )
        return Completion(
            **msgspec.structs.asdict(self._identity), choices=choices, usage=self._usage(), timings=self._timings()
        )

    def _first(self) -> list[msgspec.Struct]:
        return []

    def _more(self, index: int, piece: Piece) -> list[msgspec.Struct]:
        logprobs = self._logprobs(index, piece.tokens)
        choice = CompletionChoice(index=index, text=piece.text, logprobs=logprobs, finish_reason=None)
        return [*self._opening(index), self._chunk(choice)]

    def _last(self, index: int) -> list[msgspec.Struct]:
        reason = self._answers[index].transcript.finish_reason
        return [*self._opening(index), self._chunk(CompletionChoice(index=index, text="", finish_reason=reason))]

    def _counted(self) -> Completion:
        return Completion(
            **msgspec.structs.asdict(self._identity), choices=[], usage=self._usage(), timings=self._timings()
        )

    def _opening(self, index: int) -> list[msgspec.Struct]:
        """The echo, before anything else of the answer."""
        echo = self._echo(index)
        if echo is None or index in self._begun:
            return []
        self._begun.add(index)
        logprobs = self._logprobs(index, (), echo)
        choice = CompletionChoice(index=index, text=echo.text, logprobs=logprobs, finish_reason=None)
        return [self._chunk(choice)]

    def _echo(self, index: int) -> Echo | None:
        return None if self._echoes is None else self._echoes[index // self._choices]

    def _chunk(self, choice: CompletionChoice) -> Completion:
        return Completion(**msgspec.structs.asdict(self._identity), choices=[choice], usage=self._no_usage)

    def _logprobs(self, index: int, tokens: Sequence[Told], echo: Echo | None = None) -> CompletionLogprobs | None:
        """echo: where the text begins with it."""
        if self._vocabulary is None:
            return None
        before = self._echo(index)
        return _logprobs(tokens, echo, len(before.text) if before else 0, self._vocabulary)


def _logprobs(tokens: Sequence[Told], echo: Echo | None, before: int, vocabulary: Vocabulary) -> CompletionLogprobs:
    """before: characters of the echo, whether it is told here or was told before."""
    told: list[tuple[int, int, Scored | None]] = []
    if echo is not None:
        told += zip(echo.tokens, echo.offsets, [None, *echo.scores()], strict=True)
    told += [(one.token, before + one.offset, one.scored) for one in tokens]
    return CompletionLogprobs(
        text_offset=[offset for _, offset, _ in told],
        token_logprobs=[scored.logprob if scored else None for _, _, scored in told],
        tokens=[vocabulary.name(token) for token, _, _ in told],
        top_logprobs=[_top(token, scored, vocabulary) if scored else None for token, _, scored in told],
    )


def _top(token: int, scored: Scored, vocabulary: Vocabulary) -> dict[str, float]:
    return {vocabulary.name(likely): logprob for likely, logprob in [*scored.top, (token, scored.logprob)]}
