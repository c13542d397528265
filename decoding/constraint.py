"""The grammar of one turn, at any prefix of what the turn generates or drafts. No torch."""

from array import array
from collections.abc import Iterable, Sequence
from typing import ClassVar

from llguidance import LLMatcher

from decoding.drafts import Source
from decoding.grammar import GrammarError, Grammars, error_of


class Constraint:
    """Which tokens may come next. What it tells depends on the grammar and the tokens alone, however it came to them.

    `seek` says behind which tokens.
    """

    def __init__(self, grammars: Grammars, grammar: str, end_ids: Sequence[int]) -> None:
        """end_ids: what ends the turn. The grammar is compiled in another thread, which `seek` waits for."""
        self._compiling = grammars.matcher(grammar)
        self._named = {token for token in end_ids if grammars.tokenizer.is_special_token(token)}  # it may be
        self._end_ids = end_ids
        self._others = set(grammars.tokenizer.eos_tokens).difference(end_ids)  # that would end other turns
        self._matcher: LLMatcher | None = None

    def begin(self, ids: "array[int]") -> None:
        """ids: all tokens of the session, to which others append what the turn generates; none of it is there yet."""
        self._ids, self._settled = ids, len(ids)  # so many tokens of the session have been followed
        self._ahead: list[int] = []  # and these behind them
        self._forced: list[int] | None = None  # what must follow there, once it was asked

    def seek(self, drafted: Sequence[int]) -> None:
        """Goes to where `drafted` follows all that the turn has generated. Raises GrammarError where it cannot be."""
        if self._matcher is None:
            self._matcher = self._compiling.result()
        new = self._ids[self._settled :].tolist()
        path = [*new, *drafted]
        common = 0
        for seen, wanted in zip(self._ahead, path, strict=False):
            if seen != wanted:
                break
            common += 1
        if common < len(self._ahead):
            self._matcher.rollback(len(self._ahead) - common)
        if self._matcher.try_consume_tokens(path[common:]) != len(path) - common:
            raise GrammarError(f"the text has left its grammar: {error_of(self._matcher)}")
        self._settled += len(new)
        self._ahead, self._forced = path[len(new) :], None

    def allowed(self) -> bytearray:
        """One bit for each token of the vocabulary, the lowest one of the first byte for token 0.

        End tokens are among them where the text is complete, and those that the grammar names where it names them;
        elsewhere only where nothing else could follow.
        """
        assert self._matcher is not None
        mask = bytearray(self._matcher.compute_bitmask())
        ending = [token for token in self._end_ids if mask[token >> 3] >> (token & 7) & 1]
        complete = self._matcher.is_accepting()
        for token in self._end_ids:
            if complete:
                mask[token >> 3] |= 1 << (token & 7)
            elif token not in self._named:
                mask[token >> 3] &= ~(1 << (token & 7))
        for token in self._others:
            mask[token >> 3] &= ~(1 << (token & 7))
        if mask.count(0) == len(mask):  # a request may call a token an end that its text cannot do without
            for token in ending:
                mask[token >> 3] |= 1 << (token & 7)
        if self._matcher.is_error() or mask.count(0) == len(mask):
            raise GrammarError(f"the grammar can be followed no further: {error_of(self._matcher)}")
        return mask

    def allows(self, token: int) -> bool:
        """Whether a token may come next."""
        assert self._matcher is not None
        if forced := self.forced():
            return token == forced[0]
        if token in self._end_ids:  # the matcher itself validates none
            return bool(self.allowed()[token >> 3] >> (token & 7) & 1)
        return self._matcher.validate_tokens([token]) == 1

    def forced(self) -> list[int]:
        """The tokens that must come next, as far as there is one way only; none where there is a choice."""
        assert self._matcher is not None
        if self._forced is None:
            self._forced = self._matcher.compute_ff_tokens()
        return self._forced


class Forced(Source):
    """What a grammar leaves no choice about. It reads the constraint, which whoever asks has moved to the context."""

    name: ClassVar[str] = "grammar"
    odds: ClassVar[Sequence[float]] = (0.0, 12.0)

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    def propose(self, context: Sequence[int]) -> Iterable[tuple[int, int]]:
        """The only token that may follow, if there is but one."""
        return [(token, 1) for token in self._constraint.forced()[:1]]
