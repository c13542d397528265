"""Where a text said before what it says now: the longest repeated suffix, and what followed it. No torch."""

from array import array
from collections.abc import Iterable, Sequence
from typing import ClassVar

from decoding.drafts import Source

LIMIT = 2**16  # tokens that are indexed, the latest ones
_SMALLEST = 2**10
_PLACES = 16  # of a pair of tokens that are looked at, latest first
_SINGLES = 8  # of a single token
_TOKENS = 4  # different ones that are proposed
_LONGEST = 8  # repeated tokens past which a match is not more trusted


class Suffixes(Source):
    """Chains of the places where each pair of tokens, and each token, stands, as LZ77 compressors keep them.

    Adding a token and taking it back are O(1); a lookup follows a chain for a bounded number of places and takes those
    with the longest match. The ids themselves are the session's own and not copied, also those that its cache evicted;
    beside them there are four integers for each indexed token, in arrays that double up to `LIMIT`.
    """

    name: ClassVar[str] = "suffix"
    odds: ClassVar[Sequence[float]] = (  # fitted on chats of the default model
        -3.4,
        *(-1.4, -1.7, -2.2, -2.6),  # a match of 1 token, by rank
        *(0.2, -1.9, -2.9, -2.0),  # of 2
        *(0.5, -2.0, -2.3, -2.0),
        *(0.7, -1.0, -1.7, -2.0),
        *(0.7, -1.4, -2.5, -2.0),
        *(0.7, -1.2, -2.5, -3.0),
        *(0.7, -1.0, -1.1, -1.0),
        *(2.4, -1.4, -1.2, -1.0),  # of 8 or more
    )

    def __init__(self, ids: Sequence[int], limit: int = LIMIT, first: int = 0) -> None:
        """ids: all tokens of the text; grows and shrinks, and `extend` and `truncate` are told. first: the first
        place that is looked at.
        """
        self._ids = ids
        self._limit = limit
        self._first = self._stop = first  # places that are indexed; the token behind each is known
        self._resize(min(_SMALLEST, limit))

    def extend(self, length: int) -> None:
        """Indexes all but the last token, which nothing follows yet."""
        ids = self._ids
        if length - 1 - self._limit > self._stop:
            self._first = self._stop = length - 1 - self._limit
        for place in range(max(self._stop, 1), length - 1):
            if place - self._first >= self._size:
                if self._size < self._limit:
                    self._stop = place
                    self._resize(min(2 * self._size, self._limit))
                else:
                    self._first = place - self._size + 1
            self._link(place, ids[place - 1], ids[place])
        self._stop = max(self._stop, length - 1)

    def truncate(self, length: int) -> None:
        """To be called while the ids are still there."""
        ids, mask = self._ids, self._size - 1
        for place in range(self._stop - 1, max(length - 1, self._first, 1) - 1, -1):
            token = ids[place]
            self._pair_heads[_pair(ids[place - 1], token) & mask] = self._pairs[place & mask]
            self._single_heads[token & mask] = self._singles[place & mask]
        self._stop = min(self._stop, max(length - 1, 0))
        if self._stop <= self._first:
            self._first = self._stop
            self._resize(self._size)

    def propose(self, context: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Longer matches first, then later ones."""
        found = self._matches(context)
        found.sort(reverse=True)
        proposed: dict[int, int] = {}
        for length, place in found:
            token = self._ids[place + 1]
            if token not in proposed:
                proposed[token] = 4 * min(length, _LONGEST) + len(proposed) - 3
                if len(proposed) == _TOKENS:
                    break
        return proposed.items()

    def _matches(self, context: Sequence[int]) -> list[tuple[int, int]]:
        """(length, place of its last token) of matches: of two tokens and more, or else of one."""
        ids, first, mask, longest = self._ids, self._first, self._size - 1, len(context)
        before, last = context[-2], context[-1]
        found = []
        place = self._pair_heads[_pair(before, last) & mask]
        for _ in range(_PLACES):
            if place <= first:
                break
            if ids[place] == last and ids[place - 1] == before:
                length = 2
                while length < longest and length <= place - first and ids[place - length] == context[-1 - length]:
                    length += 1
                found.append((length, place))
                if length == longest:
                    break
            place = self._pairs[place & mask]
        if not found:
            place = self._single_heads[last & mask]
            for _ in range(_SINGLES):
                if place <= first:
                    break
                if ids[place] == last:
                    found.append((1, place))
                place = self._singles[place & mask]
        return found

    def _link(self, place: int, before: int, token: int) -> None:
        mask = self._size - 1
        pair = _pair(before, token) & mask
        self._pairs[place & mask] = self._pair_heads[pair]
        self._pair_heads[pair] = place
        self._singles[place & mask] = self._single_heads[token & mask]
        self._single_heads[token & mask] = place

    def _resize(self, size: int) -> None:
        """size: a power of two."""
        self._size = size
        self._pair_heads, self._pairs, self._single_heads, self._singles = (array("i", [-1]) * size for _ in range(4))
        for place in range(max(self._first, 1), self._stop):
            self._link(place, self._ids[place - 1], self._ids[place])


def _pair(before: int, token: int) -> int:
    """Two tokens mixed: what differs in either differs in the low bits."""
    return (before * 0x9E3779B1 ^ token * 0x85EBCA77) >> 7
