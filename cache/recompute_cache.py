"""The yardstick: at each eviction the window is computed anew, as if the text began there. Right, and slow."""

from collections.abc import Iterable

from cache.rule import Rule, Run
from cache.session_cache import SessionCache
from cache.sink_group import Sizes


class RecomputeCache(SessionCache):
    """A query at t sees the tokens from E(t) on, all of them computed with nothing before E(t). For S = 0.

    So the first key of a window can act as a sink, as in a text of its own, and each move of E costs a forward over
    the C - B tokens that stay. Positions are those of the text: scores depend on differences only.
    """

    def waiting(self, length: int) -> int:
        """Begins a new window where the query at length - 1 has another E than the one at hand."""
        evicted = self.rule.evicted(length - 1) if length else 0
        if evicted != self._begin:
            self._begin = self.length = evicted
            for group in self._groups:
                group.restart(evicted)
        return length - self.length

    def roll_back(self, length: int) -> None:
        """What lies before the window is computed anew when it is needed."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back to {length}: the session has {self.length} tokens")
        self.length = max(length, self._begin)

    def _runs(self, start: int, stop: int) -> Iterable[Run]:
        """All rows belong to the window at hand, whatever their own E: they are there for a query behind them."""
        return [Run(start, stop, self._begin)]

    @staticmethod
    def _sizes(rule: Rule, max_rows: int) -> Sizes:
        return Sizes(rows=rule.capacity + max_rows, sinks=0, undo=0)

    @classmethod
    def _window_rows(cls, rule: Rule, window: int, max_rows: int) -> int:
        return cls._sizes(rule, max_rows).rows
