import pytest
import torch
from torch import nn

from decoding.linear import PackedLinear, can_pack, pack
from decoding.norm import RMSNorm

SHAPES = [(576, 960), (576, 3072), (1536, 576), (2048, 512), (1000, 333)]


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not can_pack(request.param):
        pytest.skip(f"oneDNN has no fast kernels for {request.param} on this processor")
    assert isinstance(request.param, torch.dtype)
    return request.param


@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_a_packed_layer_equals_the_plain_one(dtype: torch.dtype, inner: int, outer: int) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(inner, outer).to(dtype)
    x = torch.randn(1, 37, inner).to(dtype)
    with torch.no_grad():
        want = nn.functional.linear(x.double(), plain.weight.double(), plain.bias.double())
        got = PackedLinear(plain.weight, plain.bias)(x)
    torch.testing.assert_close(
        got.double(), want, rtol=2 * torch.finfo(dtype).eps, atol=1e-2 if dtype.itemsize == 2 else 1e-5
    )


@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_a_row_has_the_same_bits_whatever_stands_beside_it(dtype: torch.dtype, inner: int, outer: int) -> None:
    """So a session's text cannot depend on its batch mates. Thousands of rows: a few would miss a difference."""
    torch.manual_seed(0)
    layer = PackedLinear(torch.randn(outer, inner, dtype=dtype) * 0.05, None)
    x = torch.randn(2048, inner).to(dtype)
    x[:, 5] *= 50  # models have outlier channels
    want = layer(x)
    for rows in (1, 2, 3, 5, 8, 16, 33, 64, 128, 200):
        for first in range(0, min(2048 - rows, rows * 200), rows):
            assert torch.equal(layer(x[None, first : first + rows])[0], want[first : first + rows])


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(64, size, bias=bias) for size in (48, 16, 16))
        self.o_proj = nn.Linear(48, 64, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        out: torch.Tensor = self.o_proj(q + k.repeat(1, 1, 3) * v.repeat(1, 1, 3))
        return out


@pytest.mark.parametrize("bias", [True, False])
def test_fused_projections_give_each_its_own(bias: bool) -> None:
    torch.manual_seed(0)
    module = Attention(bias)
    inputs = [torch.randn(1, rows, 64) for rows in (1, 5, 1)]
    with torch.no_grad():
        want = [module(x) for x in inputs]
        pack(module)
        assert not list(module.parameters())  # nothing is kept twice
        for x, y in zip(inputs, want, strict=True):
            torch.testing.assert_close(module(x), y)
        torch.testing.assert_close(module.v_proj(inputs[0]), module.v_proj(inputs[0]))  # out of order, too


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_norm_has_the_bits_of_transformers_own(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    torch.manual_seed(0)
    own = LlamaRMSNorm(576, eps=1e-5).to(dtype)
    own.weight.data = torch.randn(576).to(dtype)
    x = (torch.randn(1, 2000, 576) * 10).to(dtype)
    with torch.no_grad():
        assert torch.equal(RMSNorm(own.weight, 1e-5)(x), own(x))
