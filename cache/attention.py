"""Attention of a few query rows over one contiguous slice of keys."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cache.span import Span


class Scores(NamedTuple):
    """How a layer makes weights of the products of queries and keys."""

    scaling: float
    softcap: float | None = None  # scores become softcap * tanh(score / softcap), as in Gemma 2
    sink_logits: Tensor | None = None  # [query_heads]: a score beside those of the keys, with no value, as in gpt-oss
    window: int | None = None  # most keys that a query sees; the cache knows it from the layout


def attend(query: Tensor, keys: Tensor, values: Tensor, span: Span, how: Scores) -> Tensor:
    """Attention of query [rows, query_heads, head_dim] over keys and values [kv_heads, keys, head_dim].

    The query heads that share a KV head are folded into rows: one query row through SDPA's own grouping costs
    five to eight times as much on a CPU.
    """
    if span.tile:
        return _attend_in_tiles(query, keys, values, span, how)
    rows, query_heads, head_dim = query.shape
    kv_heads = keys.shape[0]
    folded = query.transpose(0, 1).reshape(1, kv_heads, -1, head_dim)
    if how.softcap is None and how.sink_logits is None:
        out = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=span.mask, scale=how.scaling)
    else:
        out = _attend_by_hand(folded[0], keys, values, span.mask, how)
    return out.view(query_heads, rows, head_dim).transpose(0, 1)


def _attend_in_tiles(query: Tensor, keys: Tensor, values: Tensor, span: Span, how: Scores) -> Tensor:
    """Each tile is an entry of a batch; the last one is filled up with copies of a row."""
    rows, query_heads, head_dim = query.shape
    kv_heads, tiles = keys.shape[0], -(-rows // span.tile)
    if missing := tiles * span.tile - rows:
        query = torch.cat((query, query[-1:].expand(missing, -1, -1)))
    folded = query.reshape(tiles, span.tile, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    out = scaled_dot_product_attention(
        folded,
        keys[None].expand(tiles, -1, -1, -1),
        values[None].expand(tiles, -1, -1, -1),
        attn_mask=span.mask,
        scale=how.scaling,
    )
    unfolded = out.view(tiles, query_heads, span.tile, head_dim).transpose(1, 2)
    if tiles == 1:
        return unfolded[0, :rows]
    return unfolded.reshape(-1, query_heads, head_dim)[:rows]


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
