"""Whether a model's logits have the same bits alone and in company: tried out at start-up, since kernels differ."""

from dataclasses import replace

import torch
from torch import Tensor

from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.span import TILE_KEYS
from decoding.model import Model
from decoding.step import Slice, Step

_BEFORE = TILE_KEYS - 4  # rows before those that are compared: these cross into the next tile
_ROWS = 8


def make_exact(model: Model) -> str | None:
    """Has attention take calls of fixed shapes. Returns None, or why that gives no equal bits; then nothing changes."""
    if model.device.type != "cpu":
        return "only kernels of the CPU are known to sum in one order"
    if not model.packed:
        return "its linear layers are not packed, so their sums depend on the number of rows"
    if not model.plain_scores:
        return "its attention scores are capped or have sink logits, which SDPA does not know"
    layout = model.layout
    model.layout = replace(layout, exact=True)
    if _same_bits(model):
        return None
    model.layout = layout
    return "its logits depend on what stands beside a row"


def _same_bits(model: Model) -> bool:
    """Row by row, all at once, and as a draft with other rows behind it and other sessions beside it."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (_BEFORE + _ROWS,), generator=generator).tolist()

    def cache() -> SessionCache:
        return SessionCache(model.layout, Rule(0, 2 * TILE_KEYS, TILE_KEYS), max_rows=len(ids) + _ROWS)

    one_by_one, draft, beside = cache(), cache(), cache()
    for each in (one_by_one, draft, beside):
        model.extend(each, ids[:_BEFORE], 0)
    want = torch.cat([model.extend(one_by_one, [token], 1) for token in ids[_BEFORE:]])
    at_once = model.extend(cache(), ids, _ROWS)
    chain = [(2 << row) - 1 for row in range(_ROWS)]
    branch = [1 | 1 << _ROWS, 1 | 1 << _ROWS | 1 << (_ROWS + 1)]
    slices = [
        Slice(beside, ids[:3], 1),
        Slice(draft, [*ids[_BEFORE:], 0, 1], _ROWS + 2, [*chain, *branch]),
    ]
    drafted: Tensor = model.forward(Step(slices, model.device, model.groups))[1 : _ROWS + 1]
    return torch.equal(at_once, want) and torch.equal(drafted, want)
