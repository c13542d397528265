"""A linear buffer of keys and values for some of a model's layers, in which evicting moves nothing."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cache.layout import Layout


class UndoExhaustedError(LookupError):
    """The rows that a roll-back needs are gone: the session must be rebuilt from its tokens."""


class Slab:
    """Rows of keys and values, [layers, 2, kv_heads, rows, head_dim], touched only as they are used.

    Text position p lies in row origin + p for every p that is kept, so evicting moves nothing: the first visible row
    goes up. At the buffer's end the rows that are kept move to its front.
    """

    _AHEAD = 256  # rows are cleared so many at a time

    def __init__(self, layout: Layout, layers: int, rows: int, spare: int = 0) -> None:
        """spare: rows behind the last one that are read, too, and masked."""
        self.rows = rows
        self.origin = 0  # row of text position 0; below 0 once the rows have moved to the front
        self._cleared = 0  # rows that hold numbers, if only old ones
        size = (layers, 2, layout.kv_heads, rows + spare, layout.head_dim)
        self.all = torch.empty(size, dtype=layout.dtype, device=layout.device)
        # [2, kv_heads, rows, head_dim] per layer, once: indexing at each call costs as much as a small kernel
        self.layers = list(self.all)

    def put(self, layer: int, position: int, kv: Tensor) -> None:
        """Writes rows [count, 2, kv_heads, head_dim] from a text position on."""
        row = self.origin + position
        self.layers[layer][:, :, row : row + len(kv)] = kv.permute(1, 2, 0, 3)

    def clear(self, stop: int) -> None:
        """Rows before a text position may be read: a weight of zero does not hide what is no number."""
        row = self.origin + stop
        if row > self._cleared:
            ahead = min(row + self._AHEAD, self.all.shape[3])
            self.all[..., self._cleared : ahead, :] = 0
            self._cleared = ahead

    def view(self, layer: int, first: int, stop: int) -> Tensor:
        """Keys and values [2, kv_heads, stop - first, head_dim] of text positions first..stop-1."""
        rows: Tensor = self.layers[layer][:, :, self.origin + first : self.origin + stop]
        return rows

    def keep(self, position: int, rows: Sequence[int]) -> None:
        """Moves these of the rows behind a text position, which rise, to stand there one behind the other."""
        moved = next((place for place, row in enumerate(rows) if place != row), len(rows))
        if moved < len(rows):
            first = self.origin + position
            source = torch.tensor(rows[moved:], device=self.all.device) + first
            self.all[..., first + moved : first + len(rows), :] = self.all.index_select(3, source)

    def relocate(self, first: int, stop: int, row: int) -> None:
        """Moves text positions first..stop-1 so that `first` lies in `row`; all layers at once."""
        source = self.all[..., self.origin + first : self.origin + stop, :].clone()  # the two may overlap
        self.origin = row - first
        self.clear(stop)  # or what is written now would be cleared when it is read
        self.all[..., row : row + stop - first, :] = source

    def pack(self, first: int, stop: int) -> Tensor:
        """A copy [layers, 2, kv_heads, stop - first, head_dim] of text positions first..stop-1, on the CPU."""
        return compact(self.all[..., self.origin + first : self.origin + stop, :])

    def unpack(self, origin: int, first: int, rows: Tensor) -> None:
        """Puts the rows of a packed slab from text position `first` on into an empty one, where they were.

        Kernels may sum in another order over memory that is aligned otherwise, and so may the next move to the front.
        Raises ValueError for rows that are not of such a slab.
        """
        row, count = origin + first, rows.shape[3]
        if not 0 <= row <= row + count <= self.rows:
            raise ValueError(f"rows {row}..{row + count} are not in a slab of {self.rows}")
        check_like(rows, self.all[..., row : row + count, :])
        self.origin = origin
        self.all[..., :row, :] = 0  # from now on they count as rows that hold numbers
        self.all[..., row : row + count, :] = rows
        self._cleared = row + count


class Ring:
    """The last rows that left a slab: text position p lies in row p % len."""

    def __init__(self, slab: Slab, rows: int) -> None:
        self.rows = rows
        self.all = slab.all.new_empty((*slab.all.shape[:3], rows, slab.all.shape[4]))
        self.layers = list(self.all)
        self._slab = slab

    def save(self, layer: int, first: int, stop: int) -> None:
        """Copies text positions first..stop-1 of a layer from the slab."""
        for a, b in self._cuts(first, stop):
            self.layers[layer][:, :, a % self.rows : a % self.rows + b - a] = self._slab.view(layer, a, b)

    def restore(self, first: int, stop: int) -> None:
        """Copies text positions first..stop-1 back; all layers at once."""
        slab = self._slab
        for a, b in self._cuts(first, stop):
            kept = self.all[..., a % self.rows : a % self.rows + b - a, :]
            slab.all[..., slab.origin + a : slab.origin + b, :] = kept

    def pack(self, first: int, stop: int) -> Tensor:
        """A copy of text positions first..stop-1, which it must hold, on the CPU; shape as `Slab.pack`'s."""
        cuts = [self.all[..., a % self.rows : a % self.rows + b - a, :] for a, b in self._cuts(first, stop)]
        return compact(torch.cat(cuts, dim=3) if cuts else self.all[..., :0, :])

    def unpack(self, first: int, rows: Tensor) -> None:
        """Puts packed rows back, from text position `first` on. Raises ValueError for rows of another ring."""
        count = rows.shape[3]
        if count > self.rows:
            raise ValueError(f"{count} rows are not of a ring of {self.rows}")
        check_like(rows, self.all[..., :count, :])
        for a, b in self._cuts(first, first + count):
            self.all[..., a % self.rows : a % self.rows + b - a, :] = rows[..., a - first : b - first, :]

    def _cuts(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cuts first..stop-1 where the ring wraps; only the last `rows` positions can be kept."""
        first = max(first, stop - self.rows)
        while first < stop:
            end = min(stop, first - first % self.rows + self.rows)
            yield first, end
            first = end


def compact(rows: Tensor) -> Tensor:
    """A copy on the CPU that holds these rows alone."""
    return torch.empty(rows.shape, dtype=rows.dtype).copy_(rows)


def check_like(rows: Tensor, place: Tensor) -> None:
    """Raises ValueError where rows do not fit into their place."""
    if rows.shape != place.shape or rows.dtype != place.dtype:
        raise ValueError(f"{rows.dtype} {list(rows.shape)} does not fit into {place.dtype} {list(place.shape)}")
