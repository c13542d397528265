"""A model's rotary modules, with their angles computed in float64."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from cache.rope import angles
from decoding.errors import ModelRefusedError
from decoding.fused import signed

# How rotary modules of transformers lay out the cosines of their pairs over a head's elements.
ARRANGEMENTS: Sequence[Callable[[Tensor], Tensor]] = (
    lambda pairs: torch.cat((pairs, pairs), dim=-1),  # Llama: pairs are (i, i + pairs)
    lambda pairs: pairs.repeat_interleave(2, dim=-1),  # Cohere: pairs are (2i, 2i + 1)
    lambda pairs: pairs,  # GPT-J, gpt-oss: attention spreads them itself
)
_PROBED = torch.arange(6)[None]  # positions at which a module shows what it does


class Rotary:
    """Stands in for a rotary module's forward: the same cosines and sines, from float64 angles of int64 positions.

    transformers forms them in float32, which costs 3e-3 in logits at 131K tokens and 0.24 at 2^24. How the module
    arranges them is read off its own output, so a module that does something else is refused and not served wrongly.
    """

    def __init__(self, module: nn.Module) -> None:
        self.frequencies = _frequencies(module)  # [pairs] by layer type; "" where all layers are alike
        self._scaling = {
            kind: float(getattr(module, f"{kind}_attention_scaling" if kind else "attention_scaling", 1.0))
            for kind in self.frequencies
        }
        self.signed = False  # whether it serves fused attention, which takes them another way
        self._arrange, self._sines_first = self._observe(module)

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """x: its dtype is the result's; position_ids: [1, rows]. Returns two of [1, rows, rotary elements]."""
        kind = layer_type or ""
        turns = angles(position_ids, self.frequencies[kind])
        cos, sin = ((self._arrange(part) * self._scaling[kind]).to(x.dtype) for part in (turns.cos(), turns.sin()))
        if self.signed:
            return signed(cos, sin)
        return (sin, cos) if self._sines_first else (cos, sin)

    def _observe(self, module: nn.Module) -> tuple[Callable[[Tensor], Tensor], bool]:
        """The arrangement that gives what the module itself gives, and whether its sines come first."""
        for self._arrange, self._sines_first in product(ARRANGEMENTS, (False, True)):
            if all(self._agrees(module, kind) for kind in self.frequencies):
                return self._arrange, self._sines_first
        raise ModelRefusedError(f"what its {type(module).__name__} computes is not known here")

    def _agrees(self, module: nn.Module, kind: str) -> bool:
        device = self.frequencies[kind].device
        x, positions = torch.zeros(1, device=device), _PROBED.to(device)
        own = module(x, positions, kind) if kind else module(x, positions)
        mine = self(x, positions, kind)
        return all(
            a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-4) for a, b in zip(own, mine, strict=True)
        )


def replace_rotary(model: nn.Module) -> list[Rotary]:
    """Gives every rotary module of a model the forward above; there may be none."""
    replaced = []
    for module in model.modules():
        if _frequencies(module):
            rotary = Rotary(module)
            module.forward = rotary.__call__  # a plain function: a call of a module costs more
            replaced.append(rotary)
    return replaced


def _frequencies(module: nn.Module) -> dict[str, Tensor]:
    """A rotary module's frequencies in float64, by layer type; empty where it is none."""
    found = dict(_buffers(module))
    if hasattr(module, "embed_positions") and hasattr(module, "pos_embd_dim"):  # GPT-J: a table of sines
        dim: Any = module.pos_embd_dim
        inverse = 1.0 / (10000 ** (torch.arange(0, dim, 2) / dim))  # in the default dtype, as it was made there
        found[""] = inverse.to(device=module.embed_positions.device, dtype=torch.float64)
    return found


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in module.named_buffers(recurse=False):
        if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
            if buffer.dtype not in (torch.float32, torch.float64):
                raise ModelRefusedError(f"its rotary frequencies are rounded to {buffer.dtype}")
            yield name.removesuffix("inv_freq").removesuffix("_"), buffer.to(torch.float64)
