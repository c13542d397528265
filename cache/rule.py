"""The eviction rule: which keys a query sees. Integers only, no torch.

After Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453), with blocks.
What is visible depends on the query's text position alone, so neither chunks of prefill, nor turns, nor drafts,
nor a restart can change a result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
    """Queries start <= t < stop, all with the same E(t)."""

    start: int
    stop: int
    evicted: int


@dataclass(frozen=True, slots=True)
class Rule:
    """S sinks, capacity C, eviction block B; 1 <= B <= C - S, or a query could evict itself."""

    sinks: int
    capacity: int
    block: int

    def __post_init__(self) -> None:
        if self.sinks < 0:
            raise ValueError(f"sinks must be at least 0, got {self.sinks}")
        if not 1 <= self.block <= self.capacity - self.sinks:
            raise ValueError(
                f"block must be between 1 and capacity - sinks = {self.capacity} - {self.sinks}, got {self.block}"
            )

    def evicted(self, t: int) -> int:
        """E(t): tokens evicted before the query at text position t; 0 for t < C, then a multiple of B."""
        overflow = max(0, t + 1 - self.capacity)
        return self.block * -(-overflow // self.block)

    def visible(self, t: int, j: int) -> bool:
        """Whether the query at t sees the key at j; it sees itself, and at most C keys."""
        return j <= t and (j < self.sinks or j >= self.sinks + self.evicted(t))

    def distance(self, t: int, j: int) -> int:
        """Rotary distance from the query at t to a visible key at j: sinks sit right before the window."""
        return t - j if j >= self.sinks else t - self.evicted(t) - j

    def reach(self, t: int) -> int:
        """How many queries from t on have the same E: it stays while t + 1 - C <= E."""
        return self.capacity + self.evicted(t) - t

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        """Cuts the queries start <= t < stop where E moves."""
        while start < stop:
            end = min(stop, start + self.reach(start))
            yield Run(start, end, self.evicted(start))
            start = end
