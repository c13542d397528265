"""What the benchmarks share: input, medians of sides run in turn, tables."""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

WORDS = random.Random(0)


def ids(count: int) -> list[int]:
    """Random ids: what is computed does not depend on the text."""
    return WORDS.choices(range(100, 40000), k=count)


def medians(sides: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each side, run in turn; the first two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(repeats + 2):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            if round_ >= 2:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table."""
    print(f"\n**{title}**\n")
    for line in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(str(cell) for cell in line) + " |")


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def fairness(shares: Sequence[float]) -> float:
    """Jain's index: 1 where all have the same, 1/n where one of n has all; NaN of nothing."""
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else math.nan


def milliseconds(seconds: Sequence[float], *percents: float) -> str:
    """Percentiles, as a cell: 12.3 / 45.6."""
    return " / ".join(f"{1e3 * percentile(seconds, percent):.1f}" for percent in percents)
