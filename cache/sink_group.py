"""The layers of a session that follow the rule: S sinks, the latest tokens, and what it takes to go back."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cache.attention import Scores, attend
from cache.layout import Layer, Layout
from cache.packed import Part
from cache.rule import Rule, Run
from cache.slab import Ring, Slab, UndoExhaustedError, check_like
from cache.span import TILE_KEYS, Shape, Span, branches, causal, tiled
from cache.tree import Tree


class Sizes(NamedTuple):
    """Rows of a session's memory, for each layer that follows the rule."""

    rows: int  # of the slab: the window and room behind it
    sinks: int
    undo: int  # of the ring


class SinkGroup:
    """Window keys are stored rotated at their text position and never touched again; only the S sink keys are rotated
    anew, from their pristine copy, when E moves: scores depend on differences of positions only. The sinks are written
    into the rows right before the window, so what a query sees is one contiguous slice.
    """

    def __init__(self, layout: Layout, layers: Sequence[Layer], rule: Rule, sizes: Sizes) -> None:
        self._rule = rule
        self._ropes = [layer.rope for layer in layers]
        self._layout = layout
        self._slab = Slab(layout, len(layers), sizes.rows, spare=TILE_KEYS)
        self._pristine = Slab(layout, len(layers), sizes.sinks)  # the sinks as first computed, at positions 0..S-1
        self._undo = Ring(self._slab, sizes.undo)
        self._evicted = 0  # E of the last committed row: how far the sinks have moved
        self._deepest = 0  # the largest E reached: what the undo ring holds ends there, also after a roll-back
        self._length = 0  # text position of the first row in flight
        self._spans: list[Span] = []

    def tensors(self) -> list[Tensor]:
        """All memory it has; it never takes more."""
        return [self._slab.all, self._pristine.all, self._undo.all]

    def begin(self, start: int, stop: int, runs: Iterable[Run], groups: int, tree: Tree | None) -> None:
        """Makes room for rows start..stop-1, which come in these runs: one, where they are a tree."""
        slab = self._slab
        if slab.origin + stop > slab.rows:
            slab.relocate(self._evicted, start, 0)
        self._length = start
        shape = Shape(groups, self._layout.dtype, self._layout.device)
        self._spans = []
        for run in runs:
            if self._layout.exact:
                chain = run.stop if tree is None else start + tree.chain
                self._spans += tiled(run.start, chain, partial(_always, run.evicted), shape, length=start)
                if tree is not None and chain < stop:
                    self._spans.append(branches(tree, tree.chain, run.evicted, shape, length=start))
            elif tree is None:
                self._spans.append(causal(run.start, run.stop, run.evicted, shape, length=start))
            else:
                self._spans.append(branches(tree, 0, run.evicted, shape, length=start))
        slab.clear(max(span.last for span in self._spans))

    def attend(self, layer: int, query: Tensor, kv: Tensor, how: Scores) -> Tensor:
        """Appends the rows to a layer and attends from each of them.

        Rows with different E never share one attention call: between two of them the sinks move on.
        """
        slab, length, evicted = self._slab, self._length, self._evicted
        slab.put(layer, length, kv)
        mixed = []
        for span in self._spans:
            if span.first != evicted:
                self._evict(layer, evicted, span.first)
                evicted = span.first
            keys, values = slab.view(layer, evicted, span.last)
            mixed.append(attend(query[span.start : span.stop], keys, values, span, how))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def commit(self, rows: Sequence[int]) -> None:
        """These of the rows, in this order, are part of the session."""
        self._slab.keep(self._length, rows)
        self._evicted = self._spans[-1].first
        self._deepest = max(self._deepest, self._evicted)
        self._spans = []

    def check_roll_back(self, length: int) -> None:
        """Raises UndoExhaustedError where the ring does not reach so far back."""
        evicted = self._evicted_at(length)
        if evicted < self._evicted and self._deepest - evicted > self._undo.rows:
            raise UndoExhaustedError(f"{self._deepest - evicted} evicted tokens are needed, {self._undo.rows} are kept")

    def roll_back(self, length: int) -> None:
        """Only the first `length` tokens are left; the state is that of a fresh prefill of them."""
        evicted = self._evicted_at(length)
        if evicted == self._evicted:
            return
        slab, sinks = self._slab, self._rule.sinks
        if slab.origin + evicted < 0:  # the window has moved to the front since: make room before it
            kept = min(length, sinks + self._evicted)
            slab.relocate(kept, length, kept - evicted)
        self._undo.restore(sinks + evicted, min(sinks + self._evicted, length))
        for layer in range(len(self._ropes)):
            self._place_sinks(layer, evicted)
        self._evicted = evicted

    def restart(self, position: int) -> None:
        """Empty, and the next row is the first of a text that begins at this position. For S = 0."""
        self._evicted, self._slab.origin = position, -position

    def pack(self, length: int) -> Part:
        """All that it needs of the `length` committed tokens to go on, and to go back as far as it can.

        Moved sinks are left out where they are made of the pristine ones again, and of the ring what no roll-back can
        reach: rows past the E at hand are those of a text that was rolled back.
        """
        evicted, sinks = self._evicted, self._rule.sinks
        oldest = min(evicted, max(0, self._deepest - self._undo.rows))
        return Part(
            (self._slab.origin, evicted, self._deepest),
            (
                self._slab.pack(sinks + evicted if evicted else 0, length),
                self._pristine.pack(0, sinks if evicted else 0),
                self._undo.pack(sinks + oldest, sinks + evicted),
            ),
        )

    def head(self, length: int) -> Part | None:
        """The first `length` committed tokens as a group that saw no others; None where some are evicted."""
        if self._evicted:
            return None
        empty = self._slab.pack(0, 0)
        return Part((0, 0, 0), (self._slab.pack(0, length), empty, empty))

    def unpack(self, part: Part) -> None:
        """Into an empty group of the same sizes. Raises ValueError for what is not packed of such a one."""
        (origin, evicted, deepest), (rows, pristine, undone) = part
        sinks = self._rule.sinks
        check_like(pristine, self._pristine.all[..., : sinks if evicted else 0, :])
        if not 0 <= evicted <= deepest:
            raise ValueError(f"E = {evicted} is past the deepest one, {deepest}")
        self._slab.unpack(origin, sinks + evicted if evicted else 0, rows)
        self._undo.unpack(sinks + evicted - undone.shape[3], undone)
        self._evicted, self._deepest = evicted, deepest
        if evicted:
            self._pristine.all.copy_(pristine)
            for layer in range(len(self._ropes)):
                self._place_sinks(layer, evicted)

    def _evicted_at(self, length: int) -> int:
        return self._rule.evicted(length - 1) if length else 0

    def _evict(self, layer: int, before: int, after: int) -> None:
        """Moves a layer's sinks from E = before to E = after; the rows that they overwrite go to the undo ring."""
        sinks = self._rule.sinks
        if before == 0:
            self._pristine.layers[layer][:] = self._slab.view(layer, 0, sinks)
        self._undo.save(layer, sinks + before, sinks + after)
        self._place_sinks(layer, after)

    def _place_sinks(self, layer: int, evicted: int) -> None:
        keys, values = self._pristine.layers[layer]
        rope = self._ropes[layer]
        placed = self._slab.view(layer, evicted, evicted + self._rule.sinks)
        placed[0] = keys if rope is None else rope.advance(keys, evicted)
        placed[1] = values


def _always(first: int, _: int) -> int:
    """The first key of a query, whichever it is."""
    return first
