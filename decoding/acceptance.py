"""How often drafts are accepted, by what spoke for them, learnt as a session goes on. No torch."""

import math
from collections import Counter
from collections.abc import Sequence

from decoding.drafts import Source, Trie
from decoding.verify import Verified

Evidence = tuple[int, ...]  # of each source in turn; 0 where it did not propose the token

_WEIGHT = 8.0  # observations that what is known beforehand counts for
_KEPT = 0.99  # of the past's weight, at each observation


class Tally:
    """Drafted tokens by source, "window" for those that are none's. Two sources that agree count both."""

    def __init__(self) -> None:
        self.drafted: Counter[str] = Counter()  # forwarded
        self.accepted: Counter[str] = Counter()  # and chosen by the model, too

    def add(self, name: str, accepted: bool) -> None:
        """One token."""
        self.drafted[name] += 1
        self.accepted[name] += accepted


class Acceptance:
    """Chances of drafted tokens, where all before them are accepted."""

    def __init__(self, sources: Sequence[type[Source]], tally: Tally) -> None:
        self._sources, self._tally = sources, tally
        self._chances: dict[Evidence, float] = {}
        self._weights: dict[Evidence, float] = {}

    def chance(self, evidence: Evidence) -> float:
        """That a token is the model's choice."""
        known = self._chances.get(evidence)
        return self._prior(evidence) if known is None else known

    def learn(self, trie: Trie, evidence: Sequence[Evidence], verified: Verified) -> None:
        """evidence: of each node of the trie, () for those that no source proposed."""
        chosen = dict(zip(verified.nodes, verified.tokens, strict=True))
        kept = set(verified.nodes)
        for node in range(1, len(trie)):
            spoke = evidence[node]
            if not spoke:
                self._tally.add("window", node in kept)
                continue
            for source, said in zip(self._sources, spoke, strict=True):
                if said:
                    self._tally.add(source.name, node in kept)
            if (token := chosen.get(trie.parents[node])) is not None:
                self._observe(spoke, trie.tokens[node] == token)

    def _observe(self, evidence: Evidence, right: bool) -> None:
        weight = self._weights.get(evidence, _WEIGHT) * _KEPT + 1
        chance = self.chance(evidence)
        self._chances[evidence] = chance + (right - chance) / weight
        self._weights[evidence] = weight

    def _prior(self, evidence: Evidence) -> float:
        """Before it has been seen in this session: each source shifts the odds."""
        odds = sum(source.odds[said] for source, said in zip(self._sources, evidence, strict=True))
        return 1 / (1 + math.exp(-odds))
