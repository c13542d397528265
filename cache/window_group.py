"""The layers of a session that keep a sliding window of the model's own, token by token, without sinks."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from cache.attention import Scores, Tree, attend, causal_mask, tree_mask
from cache.layout import Layout
from cache.slab import Slab, UndoExhaustedError


class WindowGroup:
    """A query at t sees the keys from t - window + 1 on. Nothing is overwritten until the rows move to the slab's
    front, and then the last `undo` rows before the window move with it: they are what a roll-back needs.
    """

    def __init__(self, layout: Layout, layers: int, window: int, *, rows: int, undo: int) -> None:
        """rows: of the slab; more than window + undo and any step's rows, or all that will ever come."""
        self._window, self._undo = window, undo
        self._slab = Slab(layout, layers, rows)
        self._mask = partial(causal_mask, dtype=layout.dtype, device=layout.device, window=window)
        self._tree_mask = partial(tree_mask, dtype=layout.dtype, device=layout.device, window=window)
        self._begin = 0  # text position of the first token there is
        self._oldest = 0  # text position of the first row that is still held
        self._start = self._stop = 0  # rows in flight
        self._first = 0  # text position of the first key that any of them sees
        self._hidden: Tensor | None = None  # their mask

    def tensors(self) -> list[Tensor]:
        """All memory it has; it never takes more."""
        return [self._slab.all]

    def begin(self, start: int, stop: int, groups: int, branches: Tree | None) -> None:
        """Makes room for rows start..stop-1."""
        slab = self._slab
        if slab.origin + stop > slab.rows:
            self._oldest = max(self._oldest, start - self._window + 1 - self._undo)
            slab.relocate(self._oldest, start, 0)
        self._start, self._stop = start, stop
        self._first = max(self._begin, start - self._window + 1)
        keys = stop - self._first
        self._hidden = (
            self._mask(stop - start, keys, groups) if branches is None else self._tree_mask(branches, keys, groups)
        )

    def attend(self, layer: int, query: Tensor, kv: Tensor, how: Scores) -> Tensor:
        """Appends the rows to a layer and attends from each of them."""
        self._slab.put(layer, self._start, kv)
        keys, values = self._slab.view(layer, self._first, self._stop)
        return attend(query, keys, values, self._hidden, how)

    def commit(self, rows: Sequence[int]) -> None:
        """These of the rows, in this order, are part of the session."""
        self._slab.keep(self._start, rows)
        self._hidden = None

    def check_roll_back(self, length: int) -> None:
        """Raises UndoExhaustedError where rows that the next query sees are gone."""
        needed = max(self._begin, length - self._window + 1)
        if needed < self._oldest:
            raise UndoExhaustedError(f"tokens from {needed} on are needed, those from {self._oldest} on are kept")

    def roll_back(self, length: int) -> None:
        """Only the first `length` tokens are left."""

    def restart(self, position: int) -> None:
        """Empty, and the next row is the first of a text that begins at this position."""
        self._begin = self._oldest = position
        self._slab.origin = -position
