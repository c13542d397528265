"""The cache that evicts nothing, and therefore ends: every query sees all that came before it."""

from collections.abc import Sequence

from cache.layout import Layout
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.sink_group import Sizes
from cache.tree import MAX_TREE_ROWS


class DenseCache(SessionCache):
    """Takes C tokens and no more: what models are trained with."""

    def __init__(self, layout: Layout, rule: Rule, *, max_rows: int) -> None:
        super().__init__(layout, rule, max_rows=max_rows)
        self.limit = rule.capacity

    def begin(self, rows: int, groups: int, ancestors: Sequence[int] | None = None) -> None:
        """Raises ValueError where the rows, or the first of a tree, go past the limit."""
        needed = self.length + (rows if ancestors is None else 1)
        if needed > self.rule.capacity:
            raise ValueError(f"{needed} tokens do not fit into a dense cache of {self.rule.capacity}")
        super().begin(rows, groups, ancestors)

    @staticmethod
    def _sizes(rule: Rule, max_rows: int) -> Sizes:
        return Sizes(rows=rule.capacity + min(max_rows, MAX_TREE_ROWS), sinks=rule.sinks, undo=0)

    @classmethod
    def _window_rows(cls, rule: Rule, window: int, max_rows: int) -> int:
        return cls._sizes(rule, max_rows).rows
