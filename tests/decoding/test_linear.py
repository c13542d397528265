import pytest
import torch
from torch import nn

from decoding.linear import PackedLinear, can_pack, join

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


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_joined_layers_compute_what_each_did(bias: bool, packed: bool) -> None:
    torch.manual_seed(0)
    parts = [nn.Linear(64, size, bias=bias) for size in (48, 16, 16)]
    x = torch.randn(1, 5, 64)
    with torch.no_grad():
        torch.testing.assert_close(join(parts, packed)(x), torch.cat([part(x) for part in parts], -1))


def test_layers_with_and_without_a_bias_do_not_join() -> None:
    with pytest.raises(ValueError, match="either all parts have a bias"):
        join([nn.Linear(8, 8), nn.Linear(8, 8, bias=False)], packed=False)
