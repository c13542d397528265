import torch

from cache.rope import Rope, angles

INV_FREQ = 1.0 / 10000.0 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16)


def rotated(keys: torch.Tensor, position: int, interleaved: bool) -> torch.Tensor:
    """By complex numbers, an independent way to turn a pair."""
    pairs = keys.view(3, 5, 8, 2) if interleaved else keys.view(3, 5, 2, 8).transpose(-1, -2)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(8).double(), position * INV_FREQ)
    pairs = torch.view_as_real(turned)
    return pairs.flatten(-2) if interleaved else pairs.transpose(-1, -2).flatten(-2)


def test_advance_equals_rotating_at_the_later_position() -> None:
    keys = torch.randn(3, 5, 16, dtype=torch.float64)
    for interleaved in (False, True):
        rope = Rope(INV_FREQ, interleaved)
        assert torch.allclose(
            rope.advance(rotated(keys, 7, interleaved), 1000), rotated(keys, 1007, interleaved), rtol=0, atol=1e-12
        )


def test_advance_by_nothing_keeps_every_bit() -> None:
    keys = torch.randn(3, 5, 16).bfloat16()
    assert torch.equal(Rope(INV_FREQ).advance(keys, 0), keys)


def test_elements_past_the_rotary_ones_stay() -> None:
    keys = torch.randn(2, 24)
    assert torch.equal(Rope(INV_FREQ).advance(keys, 9)[:, 16:], keys[:, 16:])


def test_angles_keep_their_precision_at_millions() -> None:
    position = 2**24 + 1  # float32 cannot hold it
    got = angles(torch.tensor([position]), INV_FREQ.float())[0]
    assert torch.equal(got, position * INV_FREQ.float().double())
    assert (got.float() - torch.tensor([position]).float() * INV_FREQ.float()).abs().max() > 0.1
