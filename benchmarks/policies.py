"""Time per token of recomputing the window against keeping sinks, at the same capacity, both in one run.

The paper (arXiv 2309.17453) reports up to 22.2x for Llama-2 on a GPU, block 1, at capacity 4096.
"""

import argparse
import statistics
import time

import torch

from benchmarks.measure import ids, table
from cache.policy import POLICIES
from cache.session_cache import SessionCache
from decoding.model import Model, resolve_device, resolve_dtype
from server import model_files


def timed(model: Model, cache: SessionCache, text: list[int], length: int, chunk: int) -> float:
    """Seconds to the logits of text position length - 1, all that it takes."""
    began = time.perf_counter()
    while rows := min(chunk, cache.waiting(length)):
        model.extend(cache, text[cache.length : cache.length + rows], 1)
    return time.perf_counter() - began


def row(model: Model, capacity: int, block: int, rounds: int, chunk: int) -> list[object]:
    """Each round is one window computed anew, and as many tokens with sinks as a block has, at least 16 of them."""
    text = ids(2 * capacity + rounds * max(block, 16) + 1)
    sides = {}
    for name in ("recompute", "sinks"):
        policy = POLICIES[name]
        sides[name] = policy.new_cache(model.layout, policy.rule(4, capacity, block), max_rows=chunk)
    lengths = {"recompute": capacity, "sinks": capacity + block}
    for name, cache in sides.items():
        timed(model, cache, text, lengths[name], chunk)
    anew, kept, within = [], [], []
    for _ in range(rounds):
        lengths["recompute"] += 1  # the first query of the next E
        anew.append(timed(model, sides["recompute"], text, lengths["recompute"], chunk))
        for _ in range(min(block - 1, 8)):  # the others of a block find their window there
            lengths["recompute"] += 1
            within.append(timed(model, sides["recompute"], text, lengths["recompute"], chunk))
        lengths["recompute"] += block - 1 - min(block - 1, 8)
        for _ in range(max(block, 16)):
            lengths["sinks"] += 1
            kept.append(timed(model, sides["sinks"], text, lengths["sinks"], chunk))
    recompute = statistics.median(anew)
    if within:
        recompute = (recompute + (block - 1) * statistics.median(within)) / block
    sinks = statistics.fmean(sorted(kept)[len(kept) // 10 : -len(kept) // 10 or None])  # the moves of sinks are in it
    return [capacity, block, f"{1e3 * recompute:.1f}", f"{1e3 * sinks:.1f}", f"{recompute / sinks:.1f}x"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--capacities", default="1024,4096")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--chunk", type=int, default=512, help="rows of a forward while a window is computed anew")
    arguments = parser.parse_args()
    device = resolve_device("auto")
    model = Model(model_files.resolve(arguments.model), device, resolve_dtype(arguments.dtype, device))
    table(
        f"Milliseconds a token, {model.dtype}, {device}, {torch.get_num_threads()} threads",
        ["capacity", "block", "recompute", "sinks", "ratio"],
        [
            row(model, int(capacity), block, arguments.rounds, arguments.chunk)
            for capacity in arguments.capacities.split(",")
            for block in (1, 64)
        ],
    )


if __name__ == "__main__":
    main()
