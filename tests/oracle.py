"""The slow truth beside the fast path: a dense O(T^2) forward with the rule's mask and distances, in any dtype.

It shares no code with the cache: what a query sees, and at which distances, is written out again here.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm


def evicted(t: int, capacity: int, block: int) -> int:
    """E(t), by counting: blocks leave until the query, itself included, sees at most `capacity` keys."""
    gone = 0
    while t + 1 - gone > capacity:
        gone += block
    return gone


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
    """x [..., head_dim] at positions [...]: Llama's pairing (i, i + head_dim / 2), angles in float64."""
    turns = positions.double()[..., None] * inv_freq.double()
    cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def norm(module: LlamaRMSNorm, x: Tensor) -> Tensor:
    """transformers' own rounds to float32 inside, which a comparison in float64 would see."""
    return module.weight * x * (x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()


@torch.no_grad()
def logits(model: LlamaForCausalLM, ids: list[int], *, sinks: int, capacity: int, block: int, first: int = 0) -> Tensor:
    """Logits [len(ids) - first, vocabulary] of the whole text at once."""
    config: Any = model.config
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    inv_freq = model.model.rotary_emb.inv_freq
    count = len(ids)
    positions = torch.arange(count)
    eviction = [evicted(t, capacity, block) for t in range(count)]
    hidden = model.model.embed_tokens(torch.tensor(ids))
    for layer in model.model.layers:
        attention = layer.self_attn
        normed = norm(layer.input_layernorm, hidden)
        query = attention.q_proj(normed).view(count, heads, dim)
        key = attention.k_proj(normed).view(count, kv_heads, dim).repeat_interleave(heads // kv_heads, 1)
        value = attention.v_proj(normed).view(count, kv_heads, dim).repeat_interleave(heads // kv_heads, 1)
        mixed = torch.empty_like(query)
        turned = rotate(query, positions[:, None].expand(-1, heads), inv_freq)
        for gone in sorted(set(eviction)):  # all queries with one E: they see sinks at the same places
            t = [t for t in range(count) if eviction[t] == gone]
            j = positions[: t[-1] + 1]
            place = torch.where(j < sinks, j + gone, j)  # sinks sit right before the window
            scores = torch.einsum("thd,jhd->htj", turned[t], rotate(key[j], place[:, None].expand(-1, heads), inv_freq))
            visible = (j[None] <= positions[t, None]) & ((j < sinks) | (j >= sinks + gone))[None]
            weights = scores.mul(dim**-0.5).masked_fill(~visible, -torch.inf).softmax(-1)
            mixed[t] = torch.einsum("htj,jhd->thd", weights, value[j])
        hidden = hidden + attention.o_proj(mixed.reshape(count, heads * dim))
        hidden = hidden + layer.mlp(norm(layer.post_attention_layernorm, hidden))
    out: Tensor = model.lm_head(norm(model.model.norm, hidden[first:]))
    return out
