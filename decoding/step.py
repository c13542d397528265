"""The rows of one step: what every running session forwards, packed into one batch [1, rows]."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.attention import Scores
from cache.session_cache import SessionCache


@dataclass(frozen=True, slots=True)
class Slice:
    """One session's share: tokens for its next text positions, and how many of the last rows' logits are wanted."""

    cache: SessionCache
    tokens: Sequence[int]
    num_logits: int
    ancestors: Sequence[int] | None = None  # of a tree of drafts: the rows that each row sees, as a bit mask


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
            if part.ancestors is None:
                positions.extend(range(length, length + len(part.tokens)))
            else:
                positions.extend(length + mask.bit_count() - 1 for mask in part.ancestors)
            keep.extend(range(len(tokens) - part.num_logits, len(tokens)))
            part.cache.begin(len(part.tokens), groups, part.ancestors)
            self._spans.append((part.cache, first, len(tokens)))
        self.tokens = torch.tensor(tokens, device=device)[None]  # [1, rows]
        self.positions = torch.tensor(positions, device=device)[None]  # [1, rows] text positions, int64
        self.keep = torch.tensor(keep, dtype=torch.int64, device=device)  # [logits] rows whose logits are wanted

    def attend(self, layer: int, query: Tensor, kv: Tensor, how: Scores) -> Tensor:
        """query [rows, query_heads, head_dim], kv [rows, 2, kv_heads, head_dim] (keys, values), rotated.

        Returns [rows, query_heads, head_dim].
        """
        mixed = [cache.attend(layer, query[first:stop], kv[first:stop], how) for cache, first, stop in self._spans]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def commit(self) -> None:
        """All rows of all sessions are now part of them."""
        for cache, first, stop in self._spans:
            cache.commit(range(stop - first))
