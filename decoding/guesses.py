"""The likeliest continuations of a context, by all sources together. No torch."""

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from decoding.acceptance import Acceptance, Evidence
from decoding.constraint import Constraint
from decoding.drafts import ROOT, Source
from decoding.strategy import Draft, Limits, Strategy
from decoding.verify import Verified

CONTEXT = 16  # latest tokens that sources are asked about


class _Guess(NamedTuple):
    """A token that may be drafted; the likeliest compares as the smallest."""

    unlikely: float  # minus the chance that it and all before it are accepted
    parent: int
    token: int
    evidence: Evidence
    context: list[int]  # the latest tokens before it


class Guesses:
    """Asks sources node by node, and takes the likeliest guess of all next."""

    def __init__(
        self,
        sources: Sequence[Source],
        acceptance: Acceptance,
        end_ids: Collection[int],
        constraint: Constraint | None = None,
    ) -> None:
        """constraint: of the turn's grammar: what that forbids is no guess."""
        self._sources, self._acceptance, self._end_ids = sources, acceptance, end_ids
        self._constraint = constraint

    def grow(self, draft: Draft, context: Sequence[int], limits: Limits, sequences: int | None = None) -> None:
        """Adds guesses in falling order of their chances, none behind an end token.

        sequences: most paths that they may form; None: as many as come.
        """
        if limits.chain:
            sequences = 1 if sequences is None else min(sequences, 1)
        heap: list[_Guess] = []
        tips: set[int] = set()  # last nodes of sequences
        self._expand(heap, draft, ROOT, list(context[-CONTEXT:]), 1.0, limits)
        while heap and len(draft) < limits.rows:
            guess = heappop(heap)
            longer = guess.parent in tips
            if not longer and len(tips) == sequences:
                continue
            chance = -guess.unlikely
            node = draft.place(guess.parent, guess.token, chance, guess.evidence)
            tips.discard(guess.parent)
            tips.add(node)
            if guess.token not in self._end_ids:
                self._expand(heap, draft, node, [*guess.context[1 - CONTEXT :], guess.token], chance, limits)

    def learn(self, draft: Draft, verified: Verified) -> None:
        """What was accepted makes what spoke for it more trusted, in this session."""
        self._acceptance.learn(draft, draft.evidence, verified)

    def _expand(
        self, heap: list[_Guess], draft: Draft, node: int, context: list[int], chance: float, limits: Limits
    ) -> None:
        """Puts the node's possible children on the heap."""
        if draft.depth(node) >= limits.depth or len(context) < 2:
            return
        if self._constraint is not None:
            self._constraint.seek(draft.path(node))
        said: dict[int, list[int]] = {}
        for index, source in enumerate(self._sources):
            for token, evidence in source.propose(context):
                spoke = said.get(token)
                if spoke is None:
                    spoke = said[token] = [0] * len(self._sources)
                spoke[index] = evidence
        for token, spoke in said.items():
            if self._constraint is not None and not self._constraint.allows(token):
                continue
            together = tuple(spoke)
            below = chance * self._acceptance.chance(together)
            if below >= limits.floor:
                heappush(heap, _Guess(-below, node, token, together, context))


class Guessing(Strategy):
    """As many guesses as are worth their rows: the budget decides."""

    budgeted = True

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses

    def draft(self, context: Sequence[int], limits: Limits) -> Draft:
        """The likeliest guesses, of all sources."""
        draft = Draft()
        self._guesses.grow(draft, context, limits)
        return draft

    def learn(self, draft: Draft, verified: Verified, best: Sequence[int]) -> None:
        """Trusts sources by their success."""
        self._guesses.learn(draft, verified)
