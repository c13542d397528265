"""Tiles: the shape of a call, and what a row sees in it, depend on the row's text position alone."""

import random

import pytest
import torch

from cache.span import Shape, tiled

CPU = torch.device("cpu")


@pytest.mark.parametrize("window", [None, 9, 70])
@pytest.mark.parametrize("groups", [1, 3, 20])
def test_a_row_alone_and_in_company_attends_in_the_same_shape(window: int | None, groups: int) -> None:
    """Kernels sum 320 and 384 keys, of which 64 are masked, in other orders: single elements differ."""
    shape = Shape(groups, torch.float32, CPU)
    choice = random.Random(groups)

    def first(t: int) -> int:
        return 0 if window is None else max(0, t - window + 1) // 64 * 64

    for _ in range(60):
        start = choice.randint(0, 700)
        stop = start + choice.randint(1, 150)
        seen = {}
        for span in tiled(start, stop, first, shape, length=start, window=window):
            assert span.mask is not None
            tiles, _, folded, keys = span.mask.shape
            assert (folded, keys) == (groups * span.tile, span.last - span.first)
            assert tiles == -(-(span.stop - span.start) // span.tile)
            assert folded < 64
            for row in range(span.start, span.stop):
                tile, place = divmod(row - span.start, span.tile)
                masks = span.mask[tile, 0].view(groups, span.tile, keys)[:, place]
                assert torch.equal(masks, masks[:1].expand_as(masks))
                seen[start + row] = (span.first, span.last, span.tile, masks[0])
        assert sorted(seen) == list(range(start, stop))
        for t in choice.sample(range(start, stop), min(9, stop - start)):
            (alone,) = tiled(t, t + 1, first, shape, length=t, window=window)
            assert alone.mask is not None
            begin, end, tile, mask = seen[t]
            assert (begin, end, tile) == (alone.first, alone.last, alone.tile)
            assert torch.equal(mask, alone.mask[0, 0, 0])
            assert (end - begin) % 64 == 0
            oldest = 0 if window is None else max(0, t - window + 1)
            assert [begin + key for key in (mask == 0).nonzero()[:, 0].tolist()] == list(range(oldest, t + 1))
