"""A session's cache without slack, in host memory: what it takes to go on, and to go back, and nothing else."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Part(NamedTuple):
    """One group of layers."""

    numbers: tuple[int, ...]  # its state
    tensors: tuple[Tensor, ...]  # on the CPU, [layers, 2, kv_heads, rows, head_dim]


@dataclass(frozen=True, slots=True)
class Packed:
    """It shares no memory with the cache it came from and is never changed: any number of caches may unpack it."""

    length: int  # committed tokens
    begin: int  # text position of the first token of the window, where windows are computed anew; else 0
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """Memory of its tensors."""
        return sum(tensor.nbytes for part in self.parts for tensor in part.tensors)
