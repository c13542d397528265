"""What a session drafts from, turn after turn. No torch."""

from collections.abc import MutableSequence, Sequence

from decoding.acceptance import Acceptance
from decoding.constraint import Constraint, Forced
from decoding.drafts import Source
from decoding.grammar import GrammarError
from decoding.guesses import CONTEXT, Guesses, Guessing
from decoding.pool import Pool
from decoding.prediction import Prediction
from decoding.recycling import Successors
from decoding.strategy import Autoregressive, Draft, Limits, Strategy
from decoding.suffix import Suffixes
from decoding.turn import Drafting, Turn
from decoding.verify import Verified
from decoding.window import Jacobi, Lookahead, Window

_RESTORED = 2**13  # tokens of a text that came at once which are indexed, the latest ones: that takes 13 ms


class Speculator:
    """A session's own sources, what it has learnt of their success, and the strategy of its running turn."""

    def __init__(self, ids: MutableSequence[int], successors: Successors) -> None:
        """ids: all tokens of the session, which others append to; successors: shared by sessions."""
        self._ids = ids
        self._restored = len(ids)
        self._successors = successors
        self._suffixes: Suffixes | None = None
        self._pool: Pool | None = None
        self._acceptances: dict[tuple[str, ...], Acceptance] = {}
        self._sources: list[Source] = []
        self._strategy: Strategy = Autoregressive()

    def begin(self, turn: Turn, drafting: Drafting, constraint: Constraint | None = None) -> None:
        """A turn whose tokens are in the ids. drafting: resolved sizes; constraint: of its grammar."""
        self._sources = []
        if drafting.strategy in ("auto", "lookahead"):
            self._sources = self._asked(turn, drafting, constraint)
        names = tuple(source.name for source in self._sources)
        acceptance = self._acceptances.setdefault(names, Acceptance([type(source) for source in self._sources]))
        guesses = Guesses(self._sources, acceptance, turn.end_ids, constraint)
        match drafting:
            case Drafting(strategy="auto"):
                self._strategy = Guessing(guesses)
            case Drafting(strategy="lookahead", window=int(width), ngram=int(ngram), guesses=int(most)):
                window = Window(width, ngram, self._ids)
                self._strategy = Lookahead(window, self._pool or Pool(), guesses, ngram, most)
            case Drafting(strategy="jacobi", window=int(width)):
                self._strategy = Jacobi(width, self._ids)
            case _:
                self._strategy = Autoregressive()

    @property
    def sources(self) -> list[str]:
        """Names, in the order of a draft's evidence."""
        return [source.name for source in self._sources]

    @property
    def budgeted(self) -> bool:
        """Whether a draft may be cut to any number of its nodes."""
        return self._strategy.budgeted

    def draft(self, limits: Limits) -> Draft:
        """For the next step; the pending token is the last of the ids."""
        for source in self._sources:
            source.extend(len(self._ids))
        try:
            return self._strategy.draft(self._ids[-CONTEXT:], limits)
        except GrammarError:  # the turn fails where its next token is chosen
            return Draft()

    def learn(
        self, draft: Draft, verified: Verified, best: Sequence[int], likeliest: Sequence[Sequence[int]], pending: int
    ) -> None:
        """best, likeliest: the model's greedy choice, and what else it found likely, behind each node."""
        self._strategy.learn(draft, verified, best)
        for source in self._sources:
            source.observe(pending, likeliest[0])
            for node in range(1, len(draft)):
                source.observe(draft.tokens[node], likeliest[node])

    def truncate(self, length: int) -> None:
        """Only the first so many ids are left; they are still all there."""
        self._restored = min(self._restored, length)
        if self._suffixes is not None:
            self._suffixes.truncate(length)

    def _asked(self, turn: Turn, drafting: Drafting, constraint: Constraint | None) -> list[Source]:
        sources: list[Source] = []
        if "suffix" in drafting.sources:
            self._suffixes = self._suffixes or Suffixes(self._ids, first=max(0, self._restored - _RESTORED))
            sources.append(self._suffixes)
        if "recycling" in drafting.sources:
            sources.append(self._successors)
        if "pool" in drafting.sources and drafting.strategy == "lookahead":
            self._pool = self._pool or Pool()
            sources.append(self._pool)
        if "prediction" in drafting.sources and turn.prediction:
            sources.append(Prediction(self._ids[-2:], turn.prediction))
        if "grammar" in drafting.sources and constraint is not None:
            sources.append(Forced(constraint))
        return sources
