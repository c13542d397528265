"""One conversation of 200,000 tokens: does time or memory grow? As served, through the engine.

Each of 20 turns reads a long prompt and generates 250 tokens. Prints a line a turn, and what there is of a trend.
"""

import argparse
import statistics
import time
from functools import partial
from typing import Any

import psutil

from benchmarks.measure import ids, table
from cache import sink_group
from cache.attention import attend
from decoding.build import build
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.turn import Sampling, Turn
from server import model_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--generated", type=int, default=5_000, help="of the tokens, so many by single decode steps")
    parser.add_argument("--capacity", type=int, default=1024)
    arguments = parser.parse_args()
    options = EngineOptions(
        model=str(model_files.resolve(arguments.model)), capacity=arguments.capacity, memory_bytes=2**30
    )
    engine = build(options)
    keys: list[int] = []
    vars(sink_group)["attend"] = partial(_counted, keys)
    engine.open("chat", 4)
    each = arguments.generated // arguments.turns
    prompt = arguments.tokens // arguments.turns - each
    rows, steps = [], []
    pointers, used = set(), []
    for number in range(arguments.turns):
        reading, generating = _turn(engine, prompt, each, keys)
        session = engine._sessions["chat"]
        tensors = session.cache.tensors()
        pointers.add(tuple((tensor.data_ptr(), tensor.numel()) for tensor in tensors))
        used.append(psutil.Process().memory_full_info().uss)
        steps.append(1e3 * statistics.median(generating))
        rows.append(
            [
                f"{len(session.ids):,}",
                f"{prompt / reading:,.0f}",
                f"{steps[-1]:.2f}",
                f"{min(keys)} to {max(keys)}",
                f"{(used[-1] - used[0]) / 2**10:+,.0f}",
            ]
        )
        print(number + 1, *rows[-1], flush=True)
    table(
        f"A conversation of {arguments.tokens:,} tokens, {engine.facts.dtype}, {engine.facts.threads} threads",
        ["tokens", "prompt tokens/s", "ms a step (median)", "keys a step sees", "process, KiB since the first"],
        rows,
    )
    slope, error = _trend(steps)
    print(f"\nStep time: {slope:+.3f} ms a turn, standard error {error:.3f}; mean {statistics.fmean(steps):.2f} ms.")
    growth, _ = _trend([float(size) for size in used[1:]])
    print(f"Memory of the process: {growth * arguments.turns / arguments.tokens:+.1f} bytes a token.")
    print(f"Cache tensors and where they lie: {'the same throughout' if len(pointers) == 1 else 'CHANGED'}.")


def _counted(keys: list[int], query: Any, k: Any, v: Any, mask: Any, how: Any) -> Any:
    """Attention, which notes how many keys a single row saw."""
    if query.shape[0] == 1:
        keys.append(k.shape[1])
    return attend(query, k, v, mask, how)


def _turn(engine: Engine, prompt: int, generated: int, keys: list[int]) -> tuple[float, list[float]]:
    """Seconds to read the prompt, and of each step behind it."""
    engine.start(
        Turn(
            session="chat",
            tokens=ids(prompt),
            sampling=Sampling(seed=0, temperature=0),
            max_tokens=generated + 1,
            end_ids=[],
        )
    )
    began = time.perf_counter()
    while not engine.step():
        pass
    reading, times = time.perf_counter() - began, []
    keys.clear()
    while engine.has_work:
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    return reading, times


def _trend(values: list[float]) -> tuple[float, float]:
    """Slope of a line through the values, and its standard error."""
    places = range(len(values))
    line = statistics.linear_regression(places, values)
    spread = sum((place - statistics.fmean(places)) ** 2 for place in places)
    rest = sum((value - line.intercept - line.slope * place) ** 2 for place, value in zip(places, values, strict=True))
    return line.slope, (rest / (len(values) - 2) / spread) ** 0.5


if __name__ == "__main__":
    main()
