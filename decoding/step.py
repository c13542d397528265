"""The rows of one step: what every running session forwards, packed into one batch [1, rows]."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.session_cache import SessionCache


@dataclass(frozen=True, slots=True)
class Slice:
    """One session's share: tokens for its next text positions, and how many of the last rows' logits are wanted."""

    cache: SessionCache
    tokens: Sequence[int]
    num_logits: int


class Step:
    """Packed rows of several sessions; the model's attention comes back here once for each layer."""

    def __init__(self, slices: Sequence[Slice], device: torch.device, groups: int) -> None:
        """groups: query heads per KV head. Room is made in every cache."""
        tokens: list[int] = []
        positions: list[int] = []
        keep: list[int] = []
        self._spans: list[tuple[SessionCache, int, int]] = []
        for part in slices:
            first, length = len(tokens), part.cache.length
            tokens.extend(part.tokens)
            positions.extend(range(length, length + len(part.tokens)))
            keep.extend(range(len(tokens) - part.num_logits, len(tokens)))
            part.cache.begin(len(part.tokens), groups)
            self._spans.append((part.cache, first, len(tokens)))
        self.tokens = torch.tensor(tokens, device=device)[None]  # [1, rows]
        self.positions = torch.tensor(positions, device=device)[None]  # [1, rows] text positions, int64
        self.keep = torch.tensor(keep, dtype=torch.int64, device=device)  # [logits] rows whose logits are wanted

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query [1, query_heads, rows, head_dim], key and value [1, kv_heads, rows, head_dim], rotated.

        Returns [1, rows, query_heads, head_dim], as transformers wants it back.
        """
        out = torch.empty(query.shape[2], query.shape[1], query.shape[3], dtype=query.dtype, device=query.device)
        by_head = out.transpose(0, 1)
        for cache, first, stop in self._spans:
            cache.attend(
                layer,
                query[0, :, first:stop],
                key[0, :, first:stop],
                value[0, :, first:stop],
                scaling,
                by_head[:, first:stop],
            )
        return out[None]

    def commit(self) -> None:
        """All rows of all sessions are now part of them."""
        for cache, _, _ in self._spans:
            cache.commit()
