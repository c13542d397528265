"""Linear layers, packed once for oneDNN where that is at hand."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Linear = Callable[[Tensor], Tensor]  # [..., rows, in] to [..., rows, out]


class PlainLinear:
    """x @ weight.T + bias."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., rows, in] to [..., rows, out]."""
        return linear(x, self.weight, self.bias)


class PackedLinear:
    """The same with the weights in oneDNN's blocked layout, which about halves the time of a few rows.

    A row's bits do not depend on the other rows: oneDNN sums in one order for 2 rows or more. For a single row it
    splits sums of more than 1,024 terms another way, so such a row is computed beside a second one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed, self.bias = torch.ops.mkldnn._reorder_linear_weight(weight, 8), bias
        self.long = weight.shape[1] > 1024

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., rows, in] to [..., rows, out]."""
        alone = self.long and x.numel() == x.shape[-1]
        rows = torch.cat((x, x), dim=-2) if alone else x
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return out[..., :1, :] if alone else out


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and fast for this dtype on this processor."""
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):  # a build without oneDNN
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def join(parts: Sequence[nn.Linear], packed: bool) -> Linear:
    """One layer for all that `parts` compute of the same input, one behind the other."""
    weights = [part.weight.detach() for part in parts]
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    if biases and len(biases) < len(parts):
        raise ValueError("either all parts have a bias or none has")
    bias = torch.cat(biases) if biases else None
    return (PackedLinear if packed else PlainLinear)(torch.cat(weights), bias)
