"""The cache that evicts nothing, and therefore ends: every query sees all that came before it."""

from cache.layout import Layout
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.sink_group import Sizes


class DenseCache(SessionCache):
    """Takes C tokens and no more: what models are trained with."""

    def __init__(self, layout: Layout, rule: Rule, *, max_rows: int) -> None:
        super().__init__(layout, rule, max_rows=max_rows)
        self.limit = rule.capacity

    def begin(self, rows: int, groups: int) -> None:
        """Raises ValueError where the rows go past the limit."""
        if self.length + rows > self.rule.capacity:
            raise ValueError(f"{self.length + rows} tokens do not fit into a dense cache of {self.rule.capacity}")
        super().begin(rows, groups)

    @staticmethod
    def _sizes(rule: Rule, max_rows: int) -> Sizes:
        return Sizes(rows=rule.capacity, sinks=rule.sinks, undo=0)

    @classmethod
    def _window_rows(cls, rule: Rule, window: int, max_rows: int) -> int:
        return cls._sizes(rule, max_rows).rows
