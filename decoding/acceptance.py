"""How often drafts are accepted, by what spoke for them, learnt as a session goes on. No torch."""

import math
from collections.abc import Sequence

from decoding.drafts import Source, Trie
from decoding.verify import Verified

Evidence = tuple[int, ...]  # of each source in turn; 0 where it did not propose the token

_WEIGHT = 8.0  # observations that what is known beforehand counts for
_KEPT = 0.99  # of the past's weight, at each observation


class Acceptance:
    """Chances of drafted tokens, where all before them are accepted."""

    def __init__(self, sources: Sequence[type[Source]]) -> None:
        self._sources = sources
        self._chances: dict[Evidence, float] = {}
        self._weights: dict[Evidence, float] = {}

    def chance(self, evidence: Evidence) -> float:
        """That a token is the model's choice."""
        known = self._chances.get(evidence)
        return self._prior(evidence) if known is None else known

    def learn(self, trie: Trie, evidence: Sequence[Evidence], verified: Verified) -> None:
        """evidence: of each node of the trie, () for those that no source proposed."""
        chosen = dict(zip(verified.nodes, verified.tokens, strict=True))
        for node in range(1, len(trie)):
            if evidence[node] and (token := chosen.get(trie.parents[node])) is not None:
                self._observe(evidence[node], trie.tokens[node] == token)

    def _observe(self, evidence: Evidence, right: bool) -> None:
        weight = self._weights.get(evidence, _WEIGHT) * _KEPT + 1
        chance = self.chance(evidence)
        self._chances[evidence] = chance + (right - chance) / weight
        self._weights[evidence] = weight

    def _prior(self, evidence: Evidence) -> float:
        """Before it has been seen in this session: each source shifts the odds."""
        odds = sum(source.odds[said] for source, said in zip(self._sources, evidence, strict=True))
        return 1 / (1 + math.exp(-odds))
