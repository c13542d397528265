"""Token recycling (Luo et al., arXiv 2408.08696): what the model found likeliest behind each token. No torch."""

from array import array
from collections.abc import Iterable, Sequence
from typing import ClassVar

from decoding.drafts import Source

WIDTH = 8  # successors kept for a token


class Successors(Source):
    """For each token of the vocabulary its likeliest successors where it was computed last, in whatever context.

    It is shared by sessions: 4 * WIDTH bytes a token of the vocabulary.
    """

    name: ClassVar[str] = "recycling"
    odds: ClassVar[Sequence[float]] = (0.0, 0.5, 0.3, 0.0, -0.2, -0.4, -0.4, -0.4, -0.4)  # by rank

    def __init__(self, vocab_size: int) -> None:
        self._width = min(WIDTH, vocab_size)
        self._table = array("i", [-1]) * (self._width * vocab_size)

    def propose(self, context: Sequence[int]) -> Iterable[tuple[int, int]]:
        """The successors of the last token, by rank."""
        first = self._width * context[-1]
        if self._table[first] < 0:
            return ()
        return zip(self._table[first : first + self._width], range(1, self._width + 1), strict=True)

    def observe(self, token: int, likeliest: Sequence[int]) -> None:
        """likeliest: WIDTH tokens, or all there are."""
        first = self._width * token
        self._table[first : first + self._width] = array("i", likeliest)
