"""The cache of one session: append rows, attend, commit, roll back. Bounded memory, for ever."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cache.attention import attend, causal_mask
from cache.rope import Rope
from cache.rule import Rule, Run
from cache.slab import Shape, Slab


class UndoExhaustedError(LookupError):
    """The rows that a roll-back needs have left the undo ring: the session must be rebuilt from its tokens."""


class _Piece(NamedTuple):
    """In-flight rows start..stop-1 that share one E, and their mask."""

    start: int
    stop: int
    evicted: int
    mask: Tensor | None


class SessionCache:
    """Keys and values of one session under the rule, all layers: the first S tokens and the latest ones.

    A step is `begin(rows)`, `attend` once for each layer, `commit()`. Rows of one step are consecutive text positions.
    Window keys are stored rotated at their text position and never touched again; only the S sink keys are rotated
    anew, from their pristine copy, when E moves (spec: scores depend on differences of positions only).
    """

    limit: int | None = None  # most tokens it takes; None: there is no end

    def __init__(self, shape: Shape, rule: Rule, rope: Rope, *, max_rows: int) -> None:
        """max_rows: most rows of one step."""
        self.shape, self.rule, self.rope = shape, rule, rope
        self.length = 0  # committed tokens; the next row has this text position
        self._evicted = 0  # E of the last committed row: how far the slab's sinks have moved
        self._deepest = 0  # the largest E reached: what the undo ring holds ends there, also after a roll-back
        self._pieces: list[_Piece] = []
        self._slab = Slab(shape, **self._sizes(rule, max_rows))

    @staticmethod
    def _sizes(rule: Rule, max_rows: int) -> dict[str, int]:
        """Rows of the slab: the window and room behind it, so that it moves to the front once in C tokens or more."""
        room = max(rule.capacity, max_rows + 64)
        return {"rows": rule.capacity + room, "sinks": rule.sinks, "undo": rule.capacity}

    @classmethod
    def bytes(cls, shape: Shape, rule: Rule, *, max_rows: int) -> int:
        """Memory of one session's cache, in bytes; it never grows."""
        return Slab.bytes(shape, **cls._sizes(rule, max_rows))

    def waiting(self, length: int) -> int:
        """Rows still to forward, from text position `self.length` on, before a session of `length` tokens goes on."""
        return length - self.length

    def begin(self, rows: int, groups: int) -> None:
        """Makes room for the next `rows` rows, at most max_rows. groups: query heads per KV head."""
        start, stop = self.length, self.length + rows
        slab = self._slab
        if slab.origin + stop > slab.rows:
            slab.relocate(self._evicted, start, 0)
        mask = partial(causal_mask, groups=groups, dtype=self.shape.dtype, device=self.shape.device)
        self._pieces = [
            _Piece(run.start - start, run.stop - start, run.evicted, mask(run.stop - run.start, run.stop - run.evicted))
            for run in self._runs(start, stop)
        ]

    def _runs(self, start: int, stop: int) -> Iterable[Run]:
        """Queries start <= t < stop by what is evicted before them."""
        return self.rule.runs(start, stop)

    def attend(self, layer: int, query: Tensor, kv: Tensor, scaling: float) -> Tensor:
        """Appends this step's rows to a layer and attends from each of them.

        query: [rows, query_heads, head_dim]; kv: [rows, 2, kv_heads, head_dim], keys and values, keys rotated at
        their text position. Returns [rows, query_heads, head_dim].
        Rows with different E never share one attention call: between two of them the sinks move on.
        """
        slab = self._slab
        rows, origin = slab.kv[layer], slab.origin
        first = origin + self.length
        rows[:, :, first : first + len(kv)] = kv.permute(1, 2, 0, 3)
        evicted = self._evicted
        mixed = []
        for piece in self._pieces:
            if piece.evicted != evicted:
                self._evict(layer, evicted, piece.evicted)
                evicted = piece.evicted
            keys, values = rows[:, :, origin + evicted : first + piece.stop]
            mixed.append(attend(query[piece.start : piece.stop], keys, values, piece.mask, scaling))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def commit(self) -> None:
        """All rows of the step are now part of the session."""
        last = self._pieces[-1]
        self.length += last.stop
        self._evicted = last.evicted
        self._deepest = max(self._deepest, last.evicted)
        self._pieces = []

    def roll_back(self, length: int) -> None:
        """Forgets all tokens from text position `length` on; the state is that of a fresh prefill of the rest.

        Raises UndoExhaustedError, and changes nothing, where the roll-back reaches past the undo ring.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back to {length}: the session has {self.length} tokens")
        evicted = self.rule.evicted(length - 1) if length else 0
        if evicted != self._evicted:
            slab, sinks = self._slab, self.rule.sinks
            if self._deepest - evicted > slab.undo_rows:
                raise UndoExhaustedError(
                    f"{self._deepest - evicted} evicted tokens are needed, {slab.undo_rows} are kept"
                )
            if slab.origin + evicted < 0:  # the window has moved to the front since: make room before it
                kept = min(length, sinks + self._evicted)
                slab.relocate(kept, length, kept - evicted)
            slab.restore(sinks + evicted, min(sinks + self._evicted, length))
            for layer in range(self.shape.layers):
                self._place_sinks(layer, evicted)
            self._evicted = evicted
        self.length = length

    def _evict(self, layer: int, before: int, after: int) -> None:
        """Moves a layer's sinks from E = before to E = after; the rows that they overwrite go to the undo ring."""
        sinks, slab = self.rule.sinks, self._slab
        if before == 0:
            slab.pristine[layer][:] = slab.kv[layer][:, :, slab.origin : slab.origin + sinks]
        slab.save(layer, sinks + before, sinks + after)
        self._place_sinks(layer, after)

    def _place_sinks(self, layer: int, evicted: int) -> None:
        keys, values = self._slab.pristine[layer]
        row = self._slab.origin + evicted
        kv = self._slab.kv[layer]
        kv[0, :, row : row + self.rule.sinks] = self.rope.advance(keys, evicted)
        kv[1, :, row : row + self.rule.sinks] = values
