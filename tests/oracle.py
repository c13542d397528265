"""The slow truth beside the fast path: a dense O(T^2) attention with the rule's mask and distances, in any dtype.

transformers' own model runs around it, at position 0 for every token, so that queries and keys come unrotated.
It shares no code with the cache: what a query sees, at which distances, how keys are turned is written out again here.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from tests.wide import Wide


class Truth(NamedTuple):
    """The rule, and how layers turn their keys."""

    sinks: int
    capacity: int
    block: int
    turns: Callable[[int], Tensor | None]  # frequencies of a layer, [pairs]; None: its keys are not rotated
    interleaved: bool
    cache_positions: bool  # the paper's path: all keys rotated to their place in the cache, anew for each E


def evicted(t: int, capacity: int, block: int) -> int:
    """E(t), by counting: blocks leave until the query, itself included, sees at most `capacity` keys."""
    gone = 0
    while t + 1 - gone > capacity:
        gone += block
    return gone


def rotate(x: Tensor, positions: Tensor, inv_freq: Tensor | None, interleaved: bool) -> Tensor:
    """x [heads, rows, head_dim] at positions [rows], by complex numbers; elements past the pairs stay."""
    if inv_freq is None:
        return x
    pairs = len(inv_freq)
    rotary, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    shape = (*x.shape[:-1], pairs, 2) if interleaved else (*x.shape[:-1], 2, pairs)
    parts = rotary.reshape(shape) if interleaved else rotary.reshape(shape).transpose(-1, -2)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), positions.double()[:, None] * inv_freq.double())
    turned = torch.view_as_real(torch.view_as_complex(parts.double().contiguous()) * turn)
    turned = turned if interleaved else turned.transpose(-1, -2)
    return torch.cat((turned.flatten(-2).to(x.dtype), rest), dim=-1)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    truth: Truth,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    count, groups = query.shape[2], query.shape[1] // key.shape[1]
    inv_freq = truth.turns(module.layer_idx)  # type: ignore[arg-type]
    q, k, v = query[0], key[0].repeat_interleave(groups, 0), value[0].repeat_interleave(groups, 0)
    positions = torch.arange(count)
    own_window = sliding_window is not None and sliding_window <= truth.capacity
    gone_at = [0 if own_window else evicted(t, truth.capacity, truth.block) for t in range(count)]
    mixed = torch.empty_like(q)
    for gone in sorted(set(gone_at)):  # all queries with one E: they see sinks at the same places
        t = [t for t in range(count) if gone_at[t] == gone]
        place = torch.where(positions < truth.sinks, positions + gone, positions)  # sinks right before the window
        begin = gone if truth.cache_positions else 0
        place = place - begin
        turned = rotate(q[:, t], positions[t] - begin, inv_freq, truth.interleaved)
        scores = turned @ rotate(k, place, inv_freq, truth.interleaved).mT * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        visible = (positions <= positions[t, None]) & ((positions < truth.sinks) | (positions >= truth.sinks + gone))
        if own_window:
            visible &= positions > positions[t, None] - sliding_window  # type: ignore[operator]
        scores = scores.masked_fill(~visible, -torch.inf)
        if s_aux is not None:
            scores = torch.cat((scores, s_aux[:, None, None].expand(-1, len(t), 1)), dim=-1)
        mixed[:, t] = scores.softmax(-1)[..., :count] @ v
    return mixed.transpose(0, 1)[None], None


AttentionInterface.register("oracle", _attention)


@torch.no_grad()
def logits(
    plain: PreTrainedModel,
    ids: list[int],
    *,
    sinks: int,
    capacity: int,
    block: int,
    first: int = 0,
    turns: Callable[[int], Tensor | None] | None = None,
    interleaved: bool = False,
    cache_positions: bool = False,
) -> Tensor:
    """Logits [len(ids) - first, vocabulary] of the whole text at once. turns: a Llama's own where none are given."""
    model: Any = plain
    truth = Truth(
        sinks,
        capacity,
        block,
        turns or (lambda layer: model.model.rotary_emb.inv_freq),
        interleaved,
        cache_positions,
    )
    before = model.config._attn_implementation
    model.set_attn_implementation("oracle")
    try:
        with Wide() if plain.dtype == torch.float64 else nullcontext():
            out = model(
                input_ids=torch.tensor([ids]),
                position_ids=torch.zeros(1, len(ids), dtype=torch.int64),
                use_cache=False,
                truth=truth,
            )
    finally:
        model.set_attn_implementation(before)
    answer: Tensor = out.logits[0, first:]
    return answer
