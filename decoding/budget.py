"""What a step costs by its rows, and how many guesses are worth theirs. No torch."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # at which a step is measured
_ROUNDS = 3
_RATE = 0.05  # of an observation's surprise that is learnt
_OUTLIER = 2.0  # a step that takes so many times what is expected says nothing about rows
_GAIN = 1.01  # guesses must promise that much to be forwarded


class _Weight(NamedTuple):
    curve: int
    knot: int
    share: float


class Costs:
    """Seconds of a step, by its rows and by the tokens that its sessions have cached.

    Measured at start-up, for a short and for a full cache, and corrected by each step that runs.
    """

    def __init__(self, rows: Sequence[int], cached: Sequence[int], seconds: Sequence[Sequence[float]]) -> None:
        """seconds[i][j]: of rows[j] with cached[i] tokens; rows and cached rise, and have two entries or more."""
        self._rows, self._cached = list(rows), list(cached)
        self._seconds = [list(curve) for curve in seconds]
        self._session = 0.0  # of each session beside the first

    def __call__(self, rows: int, cached: int, sessions: int = 1) -> float:
        """cached: mean of the sessions."""
        known = sum(share * self._seconds[curve][knot] for curve, knot, share in self._weights(rows, cached))
        return max(known, 1e-9) + self._session * (sessions - 1)

    def observe(self, rows: int, cached: int, sessions: int, seconds: float) -> None:
        """A step that ran."""
        expected = self(rows, cached, sessions)
        if not expected / _OUTLIER < seconds < expected * _OUTLIER:
            return
        surprise = _RATE * (seconds - expected)
        if sessions > 1:
            self._session = max(0.0, self._session + surprise / (sessions - 1))
            return
        weights = self._weights(rows, cached)
        size = sum(share * share for _, _, share in weights)
        for curve, knot, share in weights:
            self._seconds[curve][knot] += surprise * share / size

    def _weights(self, rows: int, cached: int) -> list[_Weight]:
        """Knots between which the point lies, or that it lies beyond."""
        low, share = _between(self._rows, rows)
        curve, part = _between(self._cached, cached)
        return [
            _Weight(curve + i, low + j, (part if i else 1 - part) * (share if j else 1 - share))
            for i in (0, 1)
            for j in (0, 1)
        ]


def measure(step: Callable[[int, int], float], rows: Sequence[int], cached: Sequence[int], patience: float) -> Costs:
    """step(rows, cached) runs one and returns its seconds: best of three rounds, fewer where they take too long.

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


def _between(knots: Sequence[int], value: int) -> tuple[int, float]:
    """The knot before which or at which a value stands, and how far it is on the way to the next one."""
    low = min(max(bisect_right(knots, value) - 1, 0), len(knots) - 2)
    share = (value - knots[low]) / (knots[low + 1] - knots[low])
    return low, max(share, 0.0)
