"""The layers of a session that keep a sliding window of the model's own, token by token, without sinks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cache.attention import Scores, attend
from cache.layout import Layout
from cache.packed import Part
from cache.slab import Slab, UndoExhaustedError
from cache.span import TILE_KEYS, Shape, Span, branches, causal, tiled
from cache.tree import Tree


class WindowGroup:
    """A query at t sees the keys from t - window + 1 on. Nothing is overwritten until the rows move to the slab's
    front, and then the last `undo` rows before the window move with it: they are what a roll-back needs.
    """

    def __init__(self, layout: Layout, layers: int, window: int, *, rows: int, undo: int) -> None:
        """rows: of the slab; more than window + undo + TILE_KEYS and any step's rows, or all that will ever come."""
        self._window, self._undo = window, undo
        self._layout = layout
        self._slab = Slab(layout, layers, rows, spare=TILE_KEYS)
        self._begin = 0  # text position of the first token there is
        self._oldest = 0  # text position of the first row that is still held
        self._start = 0  # text position of the first row in flight
        self._spans: list[Span] = []

    def tensors(self) -> list[Tensor]:
        """All memory it has; it never takes more."""
        return [self._slab.all]

    def begin(self, start: int, stop: int, groups: int, tree: Tree | None) -> None:
        """Makes room for rows start..stop-1."""
        slab = self._slab
        if slab.origin + stop > slab.rows:
            oldest = max(self._begin, start - self._window + 1 - self._undo)
            if self._layout.exact:
                oldest -= (oldest - self._begin) % TILE_KEYS  # tiles are read whole
            self._oldest = max(self._oldest, oldest)
            slab.relocate(self._oldest, start, 0)
        self._start = start
        shape = Shape(groups, self._layout.dtype, self._layout.device)
        first, window = self._first(start), self._window
        if self._layout.exact:
            chain = stop if tree is None else start + tree.chain
            self._spans = list(tiled(start, chain, self._first_of_tile, shape, length=start, window=window))
            if tree is not None and chain < stop:
                self._spans.append(branches(tree, tree.chain, first, shape, length=start, window=window))
        elif tree is None:
            self._spans = [causal(start, stop, first, shape, length=start, window=window)]
        else:
            self._spans = [branches(tree, 0, first, shape, length=start, window=window)]
        slab.clear(max(span.last for span in self._spans))

    def _first(self, t: int) -> int:
        """Text position of the first key that the query at t sees."""
        return max(self._begin, t - self._window + 1)

    def _first_of_tile(self, t: int) -> int:
        """The same, a whole number of tiles behind the first token there is."""
        return self._first(t) - (self._first(t) - self._begin) % TILE_KEYS

    def attend(self, layer: int, query: Tensor, kv: Tensor, how: Scores) -> Tensor:
        """Appends the rows to a layer and attends from each of them."""
        self._slab.put(layer, self._start, kv)
        mixed = []
        for span in self._spans:
            keys, values = self._slab.view(layer, span.first, span.last)
            mixed.append(attend(query[span.start : span.stop], keys, values, span, how))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def commit(self, rows: Sequence[int]) -> None:
        """These of the rows, in this order, are part of the session."""
        self._slab.keep(self._start, rows)
        self._spans = []

    def check_roll_back(self, length: int) -> None:
        """Raises UndoExhaustedError where rows that the next query sees are gone."""
        needed = self._first_of_tile(length) if self._layout.exact else self._first(length)
        if needed < self._oldest:
            raise UndoExhaustedError(f"tokens from {needed} on are needed, those from {self._oldest} on are kept")

    def roll_back(self, length: int) -> None:
        """Only the first `length` tokens are left."""

    def restart(self, position: int) -> None:
        """Empty, and the next row is the first of a text that begins at this position."""
        self._begin = self._oldest = position
        self._slab.origin = -position

    def pack(self, length: int) -> Part:
        """All rows that it holds of the `length` committed tokens: a roll-back may need any of them."""
        slab = self._slab
        return Part((slab.origin, self._begin, self._oldest), (slab.pack(self._oldest, length),))

    def head(self, length: int) -> Part | None:
        """The first `length` committed tokens as a group that saw no others; None where some are gone."""
        if self._oldest:
            return None
        return Part((0, 0, 0), (self._slab.pack(0, length),))

    def unpack(self, part: Part) -> None:
        """Into an empty group of the same sizes. Raises ValueError for what is not packed of such a one."""
        (origin, begin, oldest), (rows,) = part
        self._slab.unpack(origin, oldest, rows)
        self._begin, self._oldest = begin, oldest
