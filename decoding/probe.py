"""What a model's layers do with keys, read off the model itself: two forwards of one token, at two positions.

With a single token attention returns its value wherever it stands, so hidden states are the same at both positions,
and a layer's two keys differ by its rotation alone. What cannot be explained that way cannot be moved, and is refused.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cache.attention import Scores
from cache.layout import Layer, Layout
from cache.rope import Rope
from decoding.errors import ModelRefusedError

POSITIONS = (0, 97)
TOKEN = 5


class _Call(NamedTuple):
    """What one layer asked of attention."""

    query_heads: int
    kv: Tensor  # [2, kv_heads, head_dim]
    how: Scores


class Probe:
    """Stands in for a step of one row."""

    def __init__(self, position: int, device: torch.device) -> None:
        self.tokens = torch.tensor([[TOKEN]], device=device)
        self.positions = torch.tensor([[position]], device=device)
        self.keep = torch.tensor([0], device=device)
        self.calls: dict[int, _Call] = {}

    def attend(self, layer: int, query: Tensor, kv: Tensor, how: Scores) -> Tensor:
        """query [1, query_heads, head_dim], kv [1, 2, kv_heads, head_dim]; returns the values, for each query head."""
        if layer in self.calls:
            raise ModelRefusedError(f"layer {layer} attends more than once")
        self.calls[layer] = _Call(query.shape[1], kv[0].clone(), how)
        return kv[:, 1].repeat_interleave(query.shape[1] // kv.shape[2], dim=1)


class Findings(NamedTuple):
    """What the probes found."""

    layout: Layout
    groups: int  # query heads per KV head


def probe(model: nn.Module, num_layers: int, frequencies: Sequence[Tensor], dtype: torch.dtype) -> Findings:
    """The layout of a model's caches; frequencies: those of its rotary modules, [pairs] each.

    Raises ModelRefusedError where a layer has no keys (recurrent layers), where its keys and values have unlike sizes
    (MLA), where positions enter otherwise than by rotation, and where the logits are no numbers.
    """
    device = next(model.parameters()).device
    probes = [Probe(position, device) for position in POSITIONS]
    for each in probes:
        with torch.inference_mode():
            out: Any = model(
                input_ids=each.tokens, position_ids=each.positions, use_cache=False, logits_to_keep=each.keep, step=each
            )
        if not out.logits.isfinite().all():
            raise ModelRefusedError(f"its logits are no numbers in {dtype}: weights are broken, or too large for it")
    first, second = (each.calls for each in probes)
    if sorted(first) != list(range(num_layers)):
        raise ModelRefusedError(f"of its {num_layers} layers {len(first)} attend to keys; all must")
    ropes = [Rope(turns, interleaved) for turns in frequencies for interleaved in (False, True)]
    layers = []
    for index in range(num_layers):
        rope = _rope_between(first[index].kv[0], second[index].kv[0], ropes, dtype, index)
        layers.append(Layer(rope, first[index].how.window))
    if all(layer.rope is None for layer in layers):
        raise ModelRefusedError(
            "none of its layers rotates keys: positions enter in another way (ALiBi, or not at all)"
        )
    shapes = {(call.query_heads, call.kv.shape) for call in first.values()}
    if len(shapes) > 1:
        raise ModelRefusedError("its layers have unlike numbers or sizes of heads")
    ((query_heads, (_, kv_heads, head_dim)),) = shapes
    return Findings(Layout(tuple(layers), kv_heads, head_dim, dtype, device), query_heads // kv_heads)


def _rope_between(first: Tensor, second: Tensor, ropes: Sequence[Rope], dtype: torch.dtype, layer: int) -> Rope | None:
    """The rotation that turns a layer's keys [kv_heads, head_dim] at the first position into those at the second."""
    tolerance = 0.03 if dtype.itemsize == 2 else 1e-4  # cosines and keys are rounded to the dtype
    by = POSITIONS[1] - POSITIONS[0]
    size = first.double().norm()
    found: list[tuple[float, Rope | None]] = []
    for rope in (None, *ropes):
        moved = first if rope is None else rope.advance(first, by)
        found.append((float((moved.double() - second.double()).norm() / size), rope))
    error, best = min(found, key=lambda pair: pair[0])
    if not error < tolerance:
        raise ModelRefusedError(f"positions enter layer {layer} otherwise than by rotating its keys")
    return best
