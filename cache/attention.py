"""Attention of a few query rows over one contiguous slice of keys."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Scores(NamedTuple):
    """How a layer makes weights of the products of queries and keys."""

    scaling: float
    softcap: float | None = None  # scores become softcap * tanh(score / softcap), as in Gemma 2
    sink_logits: Tensor | None = None  # [query_heads]: a score beside those of the keys, with no value, as in gpt-oss
    window: int | None = None  # most keys that a query sees; the cache knows it from the layout


MAX_TREE_ROWS = 128  # so that its bit masks are of fixed size


class Tree(NamedTuple):
    """Rows of one step that continue the committed tokens in several ways at once."""

    visible: Tensor  # [rows, rows] bool: whether a row sees another: its ancestors and itself
    depths: Tensor  # [rows] int64: its distance from the root, in rows and in text positions


def tree(ancestors: Sequence[int], device: torch.device) -> Tree:
    """ancestors: a bit mask for each row, with bit j set where it sees row j: those on its path, and itself."""
    rows = len(ancestors)
    if rows > MAX_TREE_ROWS:
        raise ValueError(f"a tree has at most {MAX_TREE_ROWS} rows, not {rows}")
    packed = bytearray().join(mask.to_bytes(MAX_TREE_ROWS // 8, "little") for mask in ancestors)
    octets = torch.frombuffer(packed, dtype=torch.uint8).view(rows, -1, 1)
    visible = (octets >> torch.arange(8, dtype=torch.uint8)).bitwise_and(1).view(rows, -1)[:, :rows].bool()
    return Tree(visible.to(device), (visible.sum(-1) - 1).to(device))


def tree_mask(
    branches: Tree, keys: int, groups: int, dtype: torch.dtype, device: torch.device, window: int | None = None
) -> Tensor:
    """Additive mask [groups * rows, keys] for rows of a tree, which are the last of `keys`.

    window: most keys that a query sees, itself included.
    """
    rows = len(branches.visible)
    mask = torch.zeros(rows, keys, dtype=dtype, device=device)
    mask[:, keys - rows :].masked_fill_(~branches.visible, float("-inf"))
    if window is not None:
        places = torch.cat((torch.arange(rows - keys, 0, device=device), branches.depths))  # before the root: below 0
        mask.masked_fill_(places <= branches.depths[:, None] - window, float("-inf"))
    return mask.repeat(groups, 1)


def causal_mask(
    rows: int, keys: int, groups: int, dtype: torch.dtype, device: torch.device, window: int | None = None
) -> Tensor | None:
    """Additive mask [groups * rows, keys] for queries that are the last `rows` of `keys`; None where all is visible.

    window: most keys that a query sees, itself included.
    """
    if rows == 1 and (window is None or keys <= window):
        return None
    mask = torch.full((rows, keys), float("-inf"), dtype=dtype, device=device)
    hidden = mask.triu(keys - rows + 1)
    if window is not None:
        hidden = hidden + mask.tril(keys - rows - window)
    return hidden.repeat(groups, 1)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, how: Scores) -> Tensor:
    """Attention of query [rows, query_heads, head_dim] over keys and values [kv_heads, keys, head_dim].

    The query heads that share a KV head are folded into rows: one query row through SDPA's own grouping costs
    five to eight times as much on a CPU. mask: [groups * rows, keys], added to the scores.
    """
    rows, query_heads, head_dim = query.shape
    kv_heads = keys.shape[0]
    folded = query.transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
    if how.softcap is None and how.sink_logits is None:
        out = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=mask, scale=how.scaling)
    else:
        out = _attend_by_hand(folded[0], keys, values, mask, how)
    return out.view(query_heads, rows, head_dim).transpose(0, 1)


def _attend_by_hand(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, how: Scores) -> Tensor:
    """For what SDPA does not know; weights are formed in float32 or wider. query: [kv_heads, folded, head_dim]."""
    scores = query @ keys.mT * how.scaling
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if how.softcap is not None:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    if mask is not None:
        scores = scores + mask
    if how.sink_logits is not None:
        kv_heads, folded, _ = scores.shape
        rows = kv_heads * folded // len(how.sink_logits)
        beside = how.sink_logits.to(scores.dtype).view(kv_heads, -1, 1).expand(-1, -1, rows).reshape(kv_heads, -1, 1)
        scores = torch.cat((scores, beside), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[1]]
    return weights.to(values.dtype) @ values
