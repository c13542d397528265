"""Plain decoding against transformers' own: same weights, dtype and threads, both sides in one run.

Prints three tables: the forward of a step by rows and cached tokens, whole texts, and a long conversation.
Times are medians over interleaved repeats, so that a noisy machine disturbs both sides alike.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from benchmarks.measure import ids, medians, table
from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.build import build
from decoding.engine import Engine
from decoding.model import Model
from decoding.options import EngineOptions
from decoding.step import Slice, Step
from decoding.turn import Drafting, Sampling, Turn
from server import model_files

CPU = torch.device("cpu")
PLAIN = Drafting(strategy="autoregressive")


def forward_times(path: Path, dtype: torch.dtype, repeats: int) -> None:
    plain: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    ours = {
        "packed": Model(path, CPU, dtype, fused=False),
        "packed and fused": Model(path, CPU, dtype),
    }
    rows = []
    for cached in (512, 2048):
        prompt = ids(cached)
        past = DynamicCache(config=plain.config)
        plain(torch.tensor([prompt]), cache=past, logits_to_keep=1)
        caches = {}
        for name, model in ours.items():
            caches[name] = SessionCache(model.layout, Rule(4, 4096, 64), max_rows=cached)
            forward(model, caches[name], prompt)
        for count in (1, 8, 16, 32):
            tokens = ids(count)

            sides = {"transformers": partial(plain_forward, plain, past, tokens)}
            for name, model in ours.items():
                sides[name] = partial(forward, model, caches[name], tokens, keep=cached)
            found = medians(sides, repeats)
            base = found["transformers"]
            cells = [f"{found[name]:.1f} ms, {found[name] / base:.2f}" for name in ours]
            rows.append([cached, count, f"{base:.1f} ms", *cells])
    header = ["cached", "rows", "transformers", *(f"{name}, ratio" for name in ours)]
    table(f"Forward of one step, {dtype}", header, rows)


def plain_forward(model: Any, past: DynamicCache, tokens: Sequence[int]) -> None:
    model(torch.tensor([tokens]), cache=past)
    past.crop(-len(tokens))


def forward(model: Model, cache: SessionCache, tokens: Sequence[int], *, keep: int | None = None) -> None:
    """keep: roll back to so many tokens, after logits of all rows, as transformers computes them."""
    step = Step([Slice(cache, tokens, 1 if keep is None else len(tokens))], model.device, model.groups)
    model.forward(step)
    step.commit()
    if keep is not None:
        cache.roll_back(keep)


def text_speed(path: Path, dtype: torch.dtype, repeats: int) -> None:
    """Tokens per second of greedy texts from a 100-token prompt: transformers' generate, ours, ours 8 at once."""
    plain: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    engine = engine_for(path, dtype, capacity=1024)
    prompts = [ids(100) for _ in range(8)]
    length = 64

    def theirs() -> None:
        plain.generate(
            torch.tensor(prompts[:1]),
            attention_mask=torch.ones(1, 100, dtype=torch.long),
            min_new_tokens=length,
            max_new_tokens=length,
            do_sample=False,
        )

    found = medians(
        {
            "transformers generate, 1 stream": theirs,
            "SinkAhead, 1 stream": lambda: generate(engine, prompts[:1], length),
            "SinkAhead, 8 streams": lambda: generate(engine, prompts, length),
        },
        repeats,
    )
    speeds = {name: length * (8 if "8" in name else 1) / found[name] * 1e3 for name in found}
    first, second = list(speeds.values())[:2]
    rows = [[name, f"{speed:.1f}", f"{speed / first:.2f}", f"{speed / second:.2f}"] for name, speed in speeds.items()]
    table(f"Greedy text, {dtype}", ["", "tokens/s", "to transformers", "to one stream"], rows)


def long_conversation(path: Path, dtype: torch.dtype) -> None:
    """One text of 4 times the capacity: the step's time and the process' memory after each quarter of it."""
    capacity = 512
    engine = engine_for(path, dtype, capacity=capacity)
    engine.open("s", 32)
    engine.start(
        Turn(
            session="s", tokens=ids(32), sampling=Sampling(seed=0), max_tokens=4 * capacity, end_ids=[], drafting=PLAIN
        )
    )
    rows: list[list[str]] = []
    times: list[float] = []
    while engine.has_work:
        began = time.perf_counter()
        engine.step()
        times.append(1e3 * (time.perf_counter() - began))
        if len(times) == capacity:
            memory = psutil.Process().memory_info().rss / 2**20
            rows.append(
                [
                    f"{len(rows) * capacity:,} to {(len(rows) + 1) * capacity:,}",
                    f"{statistics.median(times):.1f} ms",
                    f"{memory:,.0f} MiB",
                ]
            )
            times = []
    title = f"One conversation at capacity {capacity}, {dtype}; sampled"
    table(title, ["tokens generated", "median step", "resident memory"], rows)


def engine_for(path: Path, dtype: torch.dtype, capacity: int) -> Engine:
    name: Any = str(dtype).removeprefix("torch.")
    return build(EngineOptions(model=str(path), device="cpu", dtype=name, capacity=capacity, memory_bytes=2**31))


def generate(engine: Engine, prompts: Sequence[list[int]], length: int) -> None:
    for index, prompt in enumerate(prompts):
        engine.open(str(index), 4)
        sampling = Sampling(seed=0, temperature=0)
        engine.start(
            Turn(session=str(index), tokens=prompt, sampling=sampling, max_tokens=length, end_ids=[], drafting=PLAIN)
        )
    while engine.has_work:
        engine.step()
    for index in range(len(prompts)):
        engine.close(str(index))


def main() -> None:
    parser = argparse.ArgumentParser("benchmarks.decode", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="default", help="as of sinkahead serve")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=25, help="of each forward; texts are repeated a fifth as often")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    path, dtype = model_files.resolve(arguments.model), getattr(torch, arguments.dtype)
    print(f"{path.name}, {dtype}, {arguments.threads} threads, torch {torch.__version__}")
    with torch.inference_mode():
        forward_times(path, dtype, arguments.repeats)
        text_speed(path, dtype, max(3, arguments.repeats // 5))
        long_conversation(path, dtype)


if __name__ == "__main__":
    main()
