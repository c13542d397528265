"""The four ways to attend to a long text, by name."""

from dataclasses import dataclass

from cache.dense_cache import DenseCache
from cache.layout import Layout
from cache.recompute_cache import RecomputeCache
from cache.rule import Rule
from cache.session_cache import SessionCache


@dataclass(frozen=True, slots=True)
class Policy:
    """Which keys stay, and how they are kept."""

    name: str
    cache: type[SessionCache]
    pins: bool = False  # whether a session's first tokens stay as sinks
    restarts: bool = False  # whether a window is computed anew for its queries, and right for those of one E only

    def rule(self, sinks: int, capacity: int, block: int) -> Rule:
        """The rule of a session with a pinned block of so many tokens. Raises ValueError for what cannot be."""
        return Rule(sinks if self.pins else 0, capacity, block)

    def new_cache(self, layout: Layout, rule: Rule, *, max_rows: int) -> SessionCache:
        """An empty cache; max_rows: most rows of one step."""
        return self.cache(layout, rule, max_rows=max_rows)


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("sinks", SessionCache, pins=True),  # the first S tokens and the latest ones
        Policy("window", SessionCache),  # the latest ones, computed with what came before them
        Policy("recompute", RecomputeCache, restarts=True),  # the latest ones, computed as a text of their own
        Policy("dense", DenseCache),  # all of them, up to C
    )
}
