"""Rows of a step that attend in one call: which keys they are given, and the mask over them.

There are two ways. The fast one: all rows that may share a call do. The exact one: calls have shapes that a row's text
position alone decides, so that kernels sum in one order, and a row's result has the same bits whatever other rows stand
beside it: few query rows, padded to a fixed tile, over keys padded to a multiple of `TILE_KEYS`.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from cache.tree import Tree

TILE_KEYS = 64
_TILE_ROWS = 4  # on a CPU they cost about what one row costs
_MAX_FOLDED = 63  # query rows from which on SDPA packs keys, or not, by the size of the batch


class Span(NamedTuple):
    """In-flight rows start..stop-1 over the keys at text positions first..last-1."""

    start: int
    stop: int
    first: int
    last: int
    mask: Tensor | None  # additive: [groups * rows, keys], or in tiles [tiles, 1, groups * tile rows, keys]
    tile: int = 0  # query rows of a tile; 0: they are not cut into tiles


class Shape(NamedTuple):
    """What masks are made for."""

    groups: int  # query heads per KV head
    dtype: torch.dtype
    device: torch.device


def causal(start: int, stop: int, first: int, shape: Shape, *, length: int, window: int | None = None) -> Span:
    """Rows at text positions start..stop-1, `length` the first in flight. window: most keys that a query sees."""
    return Span(
        start - length, stop - length, first, stop, _mask(_causal(start, stop, first, window, shape.device), shape)
    )


def branches(rows: Tree, skip: int, first: int, shape: Shape, *, length: int, window: int | None = None) -> Span:
    """The rows of a tree but for the first `skip` ones."""
    count = len(rows.visible)
    keys = length + count - first
    hidden = torch.zeros(count, keys, dtype=torch.bool, device=shape.device)
    hidden[:, keys - count :] = ~rows.visible
    if window is not None:
        places = torch.cat(
            (torch.arange(count - keys, 0, device=shape.device), rows.depths)
        )  # below 0: before the root
        hidden |= places <= rows.depths[:, None] - window
    return Span(skip, count, first, length + count, _mask(hidden[skip:], shape))


def tiled(
    start: int, stop: int, first: Callable[[int], int], shape: Shape, *, length: int, window: int | None = None
) -> Iterator[Span]:
    """The same rows as `causal`, cut where the shape of a call changes. first(t): first key that a call for t reads."""

    def keys(t: int) -> tuple[int, int]:
        begin = first(t)
        return begin, begin - (begin - t - 1) // TILE_KEYS * TILE_KEYS

    tile = max(1, min(_TILE_ROWS, _MAX_FOLDED // shape.groups))
    for (begin, end), positions in groupby(range(start, stop), keys):
        rows = list(positions)
        count = -(-len(rows) // tile) * tile
        hidden = _hidden(torch.arange(rows[0], rows[0] + count).clamp(max=rows[-1]), begin, end, window)
        mask = torch.zeros(count, end - begin, dtype=shape.dtype).masked_fill_(hidden, float("-inf"))
        folded = mask.view(-1, 1, tile, end - begin).repeat(1, 1, shape.groups, 1).to(shape.device)
        yield Span(rows[0] - length, rows[-1] + 1 - length, begin, end, folded, tile)


def _causal(start: int, stop: int, first: int, window: int | None, device: torch.device) -> Tensor | None:
    """None where all is visible."""
    if stop - start == 1 and (window is None or stop - first <= window):
        return None
    return _hidden(torch.arange(start, stop, device=device), first, stop, window)


def _hidden(positions: Tensor, first: int, last: int, window: int | None) -> Tensor:
    """[rows, keys] bool: whether the queries at these text positions do not see the keys first..last-1."""
    keys = torch.arange(first, last, device=positions.device)
    hidden = keys > positions[:, None]
    return hidden if window is None else hidden | (keys <= positions[:, None] - window)


def _mask(hidden: Tensor | None, shape: Shape) -> Tensor | None:
    if hidden is None:
        return None
    mask = torch.zeros(hidden.shape, dtype=shape.dtype, device=shape.device).masked_fill_(hidden, float("-inf"))
    return mask.repeat(shape.groups, 1)
