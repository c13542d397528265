"""What a model's layers do with keys and values, and what one cached token takes."""

from dataclasses import dataclass

import torch

from cache.rope import Rope


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's attention, as far as its cache is concerned."""

    rope: Rope | None = None  # how its keys are rotated; None: they are not
    window: int | None = None  # its own sliding window: most keys that a query sees here, itself included


@dataclass(frozen=True, slots=True)
class Layout:
    """All layers of a model; key and value heads are alike in all of them."""

    layers: tuple[Layer, ...]
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    exact: bool = False  # attention takes calls of fixed shapes, so that a row keeps its bits in any company

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize
