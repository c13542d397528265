"""The lookahead window and Jacobi decoding (Fu et al., ICML 2024). No torch.

The window's rows are iterations: (l, c) stands at position t + l + c and sees the oldest row up to its column, then
straight down its column. That is a tree below the pending token: a trunk, row 0, and from each column of it a branch.
So the window is drafted like guesses are, into the same trie; where the model agrees with it, its tokens are accepted.
"""

import random
from collections.abc import Iterator, Sequence

from decoding.drafts import ROOT
from decoding.guesses import Guesses
from decoding.pool import Pool
from decoding.strategy import Draft, Limits, Strategy
from decoding.verify import Verified


class Window:
    """W columns of N - 1 rows, filled row by row in the first steps. Tokens are taken by argmax, always."""

    def __init__(self, width: int, ngram: int, prompt: Sequence[int]) -> None:
        """prompt: row 0 starts with tokens drawn from it."""
        self._width, self._most = width, ngram - 1
        first = random.Random(0).choices(prompt, k=width + ngram - 3) if width + ngram > 3 else []
        self._rows = [first]  # row 0 without its first column, which is the pending token
        self._nodes: list[list[int]] = []  # of each row's columns, in the draft that is out

    @property
    def columns(self) -> int:
        """More than W while rows are missing."""
        return self._width + self._most - len(self._rows)

    @property
    def size(self) -> int:
        """Rows of a step that it takes, the pending token's among them."""
        return self.columns * len(self._rows)

    def place(self, draft: Draft) -> None:
        """Its tokens as nodes."""
        trunk = [ROOT]
        for token in self._rows[0]:
            trunk.append(draft.place(trunk[-1], token))
        self._nodes = [trunk]
        for row in self._rows[1:]:
            above = self._nodes[-1]
            self._nodes.append([draft.place(node, token) for node, token in zip(above, row, strict=True)])

    def shift(self, pending: int, best: Sequence[int]) -> Iterator[list[int]]:
        """One iteration further: yields the n-grams that it found, once it is full. pending: the draft's root."""
        new = [best[node] for node in self._nodes[-1]]
        rows, full = self._rows, len(self._rows) == self._most
        columns = [[pending, *rows[0]], *rows[1:], new]
        if full:
            yield from map(list, zip(*columns, strict=True))
            self._rows = [row[1:] if index == 0 else row for index, row in enumerate(columns[1:])]
        else:
            self._rows = [rows[0][1:], *(row[1:] for row in rows[1:]), new[1:]]


class Lookahead(Strategy):
    """A window of fixed size, which fills a pool, and at most G guesses of N - 1 tokens, of all sources."""

    def __init__(self, window: Window, pool: Pool, guesses: Guesses, ngram: int, most: int) -> None:
        """most: G."""
        self._window, self._pool, self._guesses = window, pool, guesses
        self._length, self._most = ngram - 1, most
        self._placed: Draft | None = None  # the draft that it is in
        self._pending = -1

    def draft(self, context: Sequence[int], limits: Limits) -> Draft:
        """A step without room for the window has guesses alone, and the window waits."""
        draft = Draft()
        self._pending = context[-1]
        fits = self._window.size <= limits.rows
        beside = self._window.size - 1 if fits else 0
        rows = min(limits.rows - beside, 1 + self._most * self._length)
        depth = min(limits.depth, self._length)
        self._guesses.grow(draft, context, limits._replace(rows=rows, depth=depth, floor=0.0), self._most)
        self._placed = draft if fits else None
        if fits:
            self._window.place(draft)
        return draft

    def learn(self, draft: Draft, verified: Verified, best: Sequence[int]) -> None:
        """Harvests the window's n-grams and moves it on by a place. A step may have had no draft of it."""
        self._guesses.learn(draft, verified)
        if self._placed is draft:
            for ngram in self._window.shift(self._pending, best):
                self._pool.add(ngram)


class Jacobi(Strategy):
    """One chain of W - 1 guesses, all of them iterated in each step."""

    def __init__(self, width: int, prompt: Sequence[int]) -> None:
        self._random = random.Random(0)
        self._prompt, self._length = prompt, width - 1
        self._chain = self._random.choices(prompt, k=self._length)

    def draft(self, context: Sequence[int], limits: Limits) -> Draft:
        """The chain, as far as there are rows."""
        draft = Draft()
        node = ROOT
        for token in self._chain[: limits.rows - 1]:
            node = draft.place(node, token)
        return draft

    def learn(self, draft: Draft, verified: Verified, best: Sequence[int]) -> None:
        """What the model made of the chain behind the accepted tokens, and tokens of the prompt at its end."""
        self._chain = list(best[len(verified.tokens) :]) if len(draft) > 1 else self._chain[1:]
        self._chain += self._random.choices(self._prompt, k=self._length - len(self._chain))
