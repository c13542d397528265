"""The n-gram pool of lookahead decoding (Fu et al., ICML 2024): what the window found. No torch."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar

from decoding.drafts import Source

_LONGEST = 3  # tokens of a key
_TOKENS = 4  # that may follow one key
_KEYS = 2**14  # that are kept


class Pool(Source):
    """n-grams by the tokens they begin with; of both keys and what follows them, those used last are kept."""

    name: ClassVar[str] = "pool"
    odds: ClassVar[Sequence[float]] = (  # fitted as the others
        0.0,
        *(-0.4, -0.9, -1.2, -1.4),  # a key of 1 token, by rank
        *(0.2, -0.6, -1.0, -1.2),
        *(0.5, -0.5, -1.0, -1.2),
    )

    def __init__(self) -> None:
        self._following: OrderedDict[tuple[int, ...], list[int]] = OrderedDict()

    def add(self, ngram: Sequence[int]) -> None:
        """Keeps an n-gram; one that is there already counts as used."""
        for stop in range(1, len(ngram)):
            for first in range(max(0, stop - _LONGEST), stop):
                key = tuple(ngram[first:stop])
                tokens = self._following.setdefault(key, [])
                if ngram[stop] in tokens:
                    tokens.remove(ngram[stop])
                tokens.insert(0, ngram[stop])
                del tokens[_TOKENS:]
                self._following.move_to_end(key)
        while len(self._following) > _KEYS:
            self._following.popitem(last=False)

    def propose(self, context: Sequence[int]) -> Iterable[tuple[int, int]]:
        """What followed the longest key that the context ends with."""
        for length in range(_LONGEST, 0, -1):
            key = tuple(context[-length:])
            if tokens := self._following.get(key):
                self._following.move_to_end(key)
                return zip(tokens, range(_TOKENS * (length - 1) + 1, _TOKENS * length + 1), strict=False)
        return ()
