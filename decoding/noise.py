"""The noise of sampling: a pure function of (seed, position, token), computed on the CPU for every device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bits = NDArray[np.uint64]
Noise = NDArray[np.float64]

CERTAIN = np.uint64(0xFFFFFFFE00000000)  # bits that the last step of splitmix64 leaves as they are
_GOLDEN = 0x9E3779B97F4A7C15  # its constants (Steele, Lea, Flood, OOPSLA 2014)
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = 2**64 - 1


def gumbel(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise for tokens [n] int64 at one text position: [n] float64.

    A pure function of (seed, position, token): the same for every device and in every batch, whatever was drafted.
    """
    return torch.from_numpy(finished(mixed(products(tokens.numpy().view(np.uint64)), key(seed, position))))


def key(seed: int, position: int) -> np.uint64:
    """What all tokens at a position share."""
    return np.uint64(_mix(_mix(seed) ^ position))


def products(tokens: Bits) -> Bits:
    """What a key is added to."""
    return tokens * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)


def mixed(products: Bits, key: np.uint64) -> Bits:
    """splitmix64's output for the sums, up to its last step."""
    bits = products + key
    shifted = bits >> np.uint64(30)
    bits ^= shifted
    bits *= np.uint64(_MIX[0])
    np.right_shift(bits, np.uint64(27), out=shifted)
    bits ^= shifted
    bits *= np.uint64(_MIX[1])
    return bits


def finished(bits: Bits) -> Noise:
    """The last step, and what noise its result is."""
    bits = bits ^ (bits >> np.uint64(31))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    # the largest is rounded to 1, whose noise would be infinite: inside (0, 1) both logarithms are finite
    noise: Noise = -np.log(-np.log(np.minimum(uniform, 1 - 2.0**-53)))
    return noise


def _mix(value: int) -> int:
    """splitmix64's output function."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MIX[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MIX[1]) & _MASK
    return value ^ (value >> 31)
