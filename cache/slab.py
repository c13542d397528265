"""The memory of one session: a linear buffer of keys and values per layer, and what is kept beside it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """What one cached token takes."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class Slab:
    """Rows of keys and values, [layers, 2, kv_heads, rows, head_dim], touched only as they are used.

    Text position p lies in row origin + p for every p of the window, so evicting moves nothing: the first visible row
    goes up with E, and the sinks are written into the rows right before the window. `undo` keeps the rows that
    the sinks overwrite, text position p in its row p % len: a ring over the last evicted positions.
    """

    def __init__(self, shape: Shape, rows: int, sinks: int, undo: int) -> None:
        def empty(count: int) -> Tensor:
            size = (shape.layers, 2, shape.kv_heads, count, shape.head_dim)
            return torch.empty(size, dtype=shape.dtype, device=shape.device)

        self.rows, self.undo_rows = rows, undo
        self.origin = 0  # row of text position 0; below 0 once the window has moved to the front
        self._all = empty(rows)
        self._pristine_all = empty(sinks)
        self._undo_all = empty(undo)
        # [2, kv_heads, rows, head_dim] per layer, once: indexing at each call costs as much as a small kernel
        self.kv = list(self._all)
        self.pristine = list(self._pristine_all)  # the sinks as first computed, at positions 0..S-1
        self.undo = list(self._undo_all)

    @staticmethod
    def bytes(shape: Shape, rows: int, sinks: int, undo: int) -> int:
        """Memory of a slab, in bytes."""
        return shape.token_bytes * (rows + sinks + undo)

    def relocate(self, first: int, stop: int, row: int) -> None:
        """Moves text positions first..stop-1 so that `first` lies in `row`; all layers at once."""
        source = self._all[..., self.origin + first : self.origin + stop, :]
        self._all[..., row : row + stop - first, :] = source.clone()  # the two may overlap
        self.origin = row - first

    def save(self, layer: int, first: int, stop: int) -> None:
        """Copies text positions first..stop-1 of a layer to the undo ring."""
        for a, b in self._ring(first, stop):
            ring = a % self.undo_rows
            self.undo[layer][:, :, ring : ring + b - a] = self.kv[layer][:, :, self.origin + a : self.origin + b]

    def restore(self, first: int, stop: int) -> None:
        """Copies text positions first..stop-1 back from the undo ring; all layers at once."""
        for a, b in self._ring(first, stop):
            ring = a % self.undo_rows
            self._all[..., self.origin + a : self.origin + b, :] = self._undo_all[..., ring : ring + b - a, :]

    def _ring(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Cuts first..stop-1 where the ring wraps; only the last len(ring) positions can be kept."""
        first = max(first, stop - self.undo_rows)
        cuts = []
        while first < stop:
            end = min(stop, first - first % self.undo_rows + self.undo_rows)
            cuts.append((first, end))
            first = end
        return cuts
