"""Attention of a few query rows over one contiguous slice of keys."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def causal_mask(rows: int, keys: int, groups: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Additive mask [groups * rows, keys] for queries that are the last `rows` of `keys`; None where all is visible."""
    if rows == 1:
        return None
    mask = torch.full((rows, keys), float("-inf"), dtype=dtype, device=device).triu_(keys - rows + 1)
    return mask.repeat(groups, 1)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention of query [rows, query_heads, head_dim] over keys and values [kv_heads, keys, head_dim].

    The query heads that share a KV head are folded into rows: one query row through SDPA's own grouping costs
    five to eight times as much on a CPU. mask: [groups * rows, keys], added to the scores.
    """
    rows, query_heads, head_dim = query.shape
    kv_heads = keys.shape[0]
    folded = query.transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
    out = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=mask, scale=scaling)
    return out.view(query_heads, rows, head_dim).transpose(0, 1)
