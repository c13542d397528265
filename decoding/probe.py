"""What a model's layers do with keys, read off the model itself: forwards of one token, at several positions.

With a single token attention returns its value wherever it stands, so hidden states are the same at all positions,
and a layer's keys, and its queries, differ by its rotation alone. What cannot be explained that way cannot be moved,
and is refused.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cache.attention import Scores
from cache.layout import Layer, Layout
from cache.rope import Rope
from decoding.errors import ModelRefusedError

POSITIONS = (0, 97, 2**20)  # the last is past what any model scales its queries for


class _Call(NamedTuple):
    """What one layer asked of attention."""

    query: Tensor  # [query_heads, head_dim]
    kv: Tensor  # [2, kv_heads, head_dim]
    how: Scores


class Probe:
    """Stands in for a step of one row."""

    def __init__(self, token: int, position: int, device: torch.device) -> None:
        self.tokens = torch.tensor([[token]], device=device)
        self.positions = torch.tensor([[position]], device=device)
        self.keep = torch.tensor([0], device=device)
        self.calls: dict[int, _Call] = {}

    def attend(self, layer: int, query: Tensor, kv: Tensor, how: Scores) -> Tensor:
        """query [1, query_heads, head_dim], kv [1, 2, kv_heads, head_dim]; returns the values, for each query head."""
        if layer in self.calls:
            raise ModelRefusedError(f"layer {layer} attends more than once")
        self.calls[layer] = _Call(query[0].clone(), kv[0].clone(), how)
        return kv[:, 1].repeat_interleave(query.shape[1] // kv.shape[2], dim=1)


class Findings(NamedTuple):
    """What the probes found."""

    layout: Layout
    groups: int  # query heads per KV head
    plain_scores: bool  # whether attention is all that SDPA knows


def probe(model: nn.Module, num_layers: int, frequencies: Sequence[Tensor], dtype: torch.dtype) -> Findings:
    """The layout of a model's caches; frequencies: those of its rotary modules, [pairs] each.

    Raises ModelRefusedError where a layer has no keys (recurrent layers), where its keys and values have unlike sizes
    (MLA), where positions enter otherwise than by rotation, and where the logits are no numbers.
    """
    device = next(model.parameters()).device
    embeddings: Any = model
    some = embeddings.get_input_embeddings().weight[:1024]  # not all: a copy in float32 may be gigabytes
    token = int(some.float().norm(dim=-1).argmax())  # padding is all zeros
    ropes = [Rope(turns, interleaved) for turns in frequencies for interleaved in (False, True)]
    calls: list[dict[int, _Call]] = []
    layers: list[Layer] = []
    for position in POSITIONS:  # far ones last: a table of positions would be read past its end
        step = Probe(token, position, device)
        if not _forward(model, step).isfinite().all():
            raise ModelRefusedError(f"its logits are no numbers in {dtype}: weights are broken, or too large for it")
        if sorted(step.calls) != list(range(num_layers)):
            raise ModelRefusedError(f"of its {num_layers} layers {len(step.calls)} attend to keys; all must")
        calls.append(step.calls)
        layers = [_layer(index, calls, ropes, dtype) for index in range(num_layers)]
    first = calls[0]
    if all(layer.rope is None for layer in layers):
        raise ModelRefusedError(
            "none of its layers rotates keys: positions enter in another way (ALiBi, or not at all)"
        )
    shapes = {(len(call.query), call.kv.shape) for call in first.values()}
    if len(shapes) > 1:
        raise ModelRefusedError("its layers have unlike numbers or sizes of heads")
    ((query_heads, (_, kv_heads, head_dim)),) = shapes
    plain = all(call.how.softcap is None and call.how.sink_logits is None for call in first.values())
    return Findings(Layout(tuple(layers), kv_heads, head_dim, dtype, device), query_heads // kv_heads, plain)


def _layer(index: int, calls: Sequence[dict[int, _Call]], ropes: Sequence[Rope], dtype: torch.dtype) -> Layer:
    seen = [torch.cat((call.query, call.kv[0])) for call in (each[index] for each in calls)]
    window = calls[0][index].how.window
    if window is not None and window < 1:
        raise ModelRefusedError(f"layer {index} has a sliding window of {window} tokens")
    return Layer(_rope_of(seen, ropes, dtype, index), window)


def _forward(model: nn.Module, step: Probe) -> Tensor:
    try:
        with torch.inference_mode():
            out: Any = model(
                input_ids=step.tokens, position_ids=step.positions, use_cache=False, logits_to_keep=step.keep, step=step
            )
    except ModelRefusedError:
        raise
    except Exception as error:
        raise ModelRefusedError(f"it does not run with our attention: {type(error).__name__}: {error}") from error
    logits: Tensor = out.logits
    return logits


def _rope_of(seen: Sequence[Tensor], ropes: Sequence[Rope], dtype: torch.dtype, layer: int) -> Rope | None:
    """The rotation that turns a layer's queries and keys [heads, head_dim] at the first position into all others."""
    tolerance = 0.03 if dtype.itemsize == 2 else 1e-4  # cosines, queries and keys are rounded to the dtype
    first, *later = seen
    size = first.double().norm()
    found: list[tuple[float, Rope | None]] = []
    for rope in (None, *ropes):
        error = 0.0
        for position, other in zip(POSITIONS[1:], later, strict=False):
            moved = first if rope is None else rope.advance(first, position)
            error = max(error, float((moved.double() - other.double()).norm() / size))
        found.append((error, rope))
    error, best = min(found, key=lambda pair: pair[0])
    if not error < tolerance:
        raise ModelRefusedError(f"positions enter layer {layer} otherwise than by rotating its queries and keys")
    return best
