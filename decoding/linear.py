"""Linear layers packed once for oneDNN, and those that read the same input fused into one."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from decoding.replace import replace

# Projections of one input inside one module, in every decoder of transformers that keeps them apart.
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class PackedLinear:
    """x @ weight.T + bias with the weights in oneDNN's blocked layout, which about halves the time of a few rows.

    A row's bits do not depend on the other rows: oneDNN sums in one order for 2 rows or more. For a single row it
    splits sums of more than 1,024 terms another way, so such a row is computed beside a second one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8)
        self.bias = None if bias is None else bias.detach()
        self.long = weight.shape[1] > 1024

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., rows, in] to [..., rows, out]."""
        alone = self.long and x.numel() == x.shape[-1]
        rows = torch.cat((x, x), dim=-2) if alone else x
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out[..., :1, :] if alone else out


class FusedLinear:
    """Several projections of one input as one packed layer, computed when the first of them is asked."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        weights: list[Tensor] = [part.weight for part in parts]
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        self.linear = PackedLinear(torch.cat(weights), torch.cat(biases) if biases else None)
        self.sizes = [part.out_features for part in parts]
        self.input: Tensor | None = None
        self.outputs: tuple[Tensor, ...] = ()

    def part(self, index: int, x: Tensor) -> Tensor:
        """Projection `index` of x: [..., rows, in] to [..., rows, its out]."""
        if x is not self.input:
            self.input, self.outputs = x, self.linear(x).split_with_sizes(self.sizes, dim=-1)
        out = self.outputs[index]
        if index == len(self.sizes) - 1:  # the last one asked: hold nothing until the next step
            self.input, self.outputs = None, ()
        return out


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and fast for this dtype on this processor."""
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):  # a build without oneDNN
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(model: nn.Module, *, fuse: bool = True) -> None:
    """Replaces every nn.Linear of a model by packed ones; fuse: q/k/v and gate/up become one layer each."""
    for module in list(model.modules()):
        for names in _FUSED if fuse else ():
            parts = [part for name in names if type(part := getattr(module, name, None)) is nn.Linear]
            if len(parts) == len(names) and len({part.bias is None for part in parts}) == 1:
                fused = FusedLinear(parts)
                for index, name in enumerate(names):
                    replace(module, name, partial(fused.part, index))
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                replace(module, name, PackedLinear(child.weight, child.bias))
