"""What a step costs by its rows, and how many guesses are worth theirs. No torch."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64)  # at which a step is measured; past the last it goes on as a line
_ROUNDS = 2
_RATE = 0.05  # of an observation's surprise that is learnt
_OUTLIER = 2.0  # times what is expected: what a step takes beyond that is a stall
_GAIN = 1.01  # guesses must promise that much to be forwarded


class Costs:
    """Seconds of a step, by its rows, its sessions, and the tokens that they have cached.

    Measured at start-up with one session, for a short and for a fuller cache, and corrected by each step that runs.
    What rows cost with a short cache is taken for the layers' part, which depends on all rows of a step; the rest for
    that of attention, of which each session has its own, for its share of them.
    """

    def __init__(self, rows: Sequence[int], cached: Sequence[int], seconds: Sequence[Sequence[float]]) -> None:
        """cached: two numbers of tokens; seconds[i][j]: of rows[j] with cached[i] of them. rows and cached rise."""
        self._rows, self._cached = list(rows), list(cached)
        self._seconds = [list(curve) for curve in seconds]
        self._session = 0.0  # of each session beside the first

    def __call__(self, rows: int, cached: int, sessions: int = 1) -> float:
        """cached: mean of the sessions. Rows are taken to be spread evenly."""
        short, fuller = self._cached
        each = rows / sessions
        per_token = max(0.0, self._curve(1, each) - self._curve(0, each)) / (fuller - short)
        seconds = self._curve(0, rows) + sessions * per_token * (cached - short) + self._session * (sessions - 1)
        return max(seconds, self._curve(0, rows) / 4)

    def observe(self, rows: int, cached: int, sessions: int, seconds: float) -> None:
        """A step that ran."""
        expected = self(rows, cached, sessions)
        surprise = _RATE * (min(max(seconds, expected / _OUTLIER), expected * _OUTLIER) - expected)
        if sessions > 1:
            self._session += surprise / (sessions - 1)
            return
        low, share = _between(self._rows, rows)
        part = (cached - self._cached[0]) / (self._cached[1] - self._cached[0])
        weights = {
            (curve, low + knot): (part if curve else 1 - part) * (share if knot else 1 - share)
            for curve in (0, 1)
            for knot in (0, 1)
        }
        size = sum(weight * weight for weight in weights.values())
        for (curve, knot), weight in weights.items():
            self._seconds[curve][knot] += surprise * weight / size
        for values in self._seconds:  # no rows cost less than fewer do
            for knot in range(low, 0, -1):
                values[knot - 1] = min(values[knot - 1], values[knot])
            for knot in range(low + 1, len(values)):
                values[knot] = max(values[knot - 1], values[knot])

    def _curve(self, curve: int, rows: float) -> float:
        low, share = _between(self._rows, rows)
        first, second = self._seconds[curve][low : low + 2]
        return first + share * (second - first)


def measure(step: Callable[[int, int], float], rows: Sequence[int], cached: Sequence[int], patience: float) -> Costs:
    """step(rows, cached) runs one and returns its seconds: best of two rounds, or one where they take too long.

    The best, since whatever disturbs a step makes it longer; and no step costs more than one with more rows.
    patience: seconds for each number of cached tokens, past which no round begins.
    """
    curves = []
    for tokens in cached:
        step(rows[0], tokens)  # warms up
        curve = [math.inf] * len(rows)
        spent = 0.0
        for _ in range(_ROUNDS):
            for knot, count in enumerate(rows):
                seconds = step(count, tokens)
                curve[knot] = min(curve[knot], seconds)
                spent += seconds
            if spent > patience:
                break
        for knot in range(len(rows) - 1, 0, -1):
            curve[knot - 1] = min(curve[knot - 1], curve[knot])
        curves.append(curve)
    return Costs(rows, cached, curves)


def worth(chances: Sequence[float], certain: int, cost: Callable[[int], float]) -> int:
    """How many of these guesses to forward, beside `certain` rows that yield a token each.

    chances: falling. cost(rows): seconds. What is maximised is expected tokens a second.
    """
    best, count, tokens = certain / cost(certain) * _GAIN, 0, float(certain)
    for index, chance in enumerate(chances, 1):
        tokens += chance
        if (speed := tokens / cost(certain + index)) > best:
            best, count = speed, index
    return count


def _between(knots: Sequence[int], value: float) -> tuple[int, float]:
    """The knot at which or behind which a value stands, and how far it is on the way to the next one."""
    low = min(max(bisect_right(knots, value) - 1, 0), len(knots) - 2)
    return low, (value - knots[low]) / (knots[low + 1] - knots[low])
