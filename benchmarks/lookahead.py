"""Lookahead decoding against plain decoding, as served: tokens a step, rows, speed, and what it all costs.

Tables: arms (strategies by kind of prompt), grid (W, N, G of the paper's method), rows (what a step costs by its
rows), batch (8 sessions at once), overhead (what a step takes beside the forward). Time counts from behind the prompt.
Texts that repeat themselves are easy to guess: arms tells of them apart, and no mean has them in it.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.arms import arms_tables, plot, speeds
from benchmarks.measure import ids, medians, table
from benchmarks.prompts import PROMPTS
from benchmarks.runs import LOOPING, PLAIN, WARM, Case, Run, cases, compare, fresh, generate, repeated, total
from cache.policy import POLICIES
from cache.rule import Rule
from decoding import engine as engine_module
from decoding.budget import ROWS
from decoding.build import build
from decoding.drafting import DraftingError, num_rows, resolve
from decoding.drafts import Trie
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.ranked import Ranked, rank
from decoding.recycling import WIDTH
from decoding.step import Slice, Step
from decoding.turn import Drafting
from server import model_files

MODES = ("greedy", "sampled")
TABLES = ("arms", "grid", "rows", "batch", "overhead")
ARMS = {
    PLAIN: Drafting(strategy="autoregressive"),
    "jacobi": Drafting(strategy="jacobi"),
    "window": Drafting(strategy="lookahead", sources=("pool",)),
    "paper": Drafting(strategy="lookahead", sources=("pool",), window=15, ngram=5, guesses=15),
    "suffix": Drafting(sources=("suffix",)),
    "recycling": Drafting(sources=("recycling",)),
    "auto": Drafting(),
    WARM: Drafting(),
}
BATCH = 8
FEW = 4  # prompts of the grid and of the overhead of one session


def grid_table(engine: Engine, chosen: Sequence[Case], mode: str, length: int) -> None:
    """The window and its pool alone, as in the paper, by their sizes."""
    sizes = {}
    for width, ngram, guesses in itertools.product((3, 5, 10, 15), (3, 4, 5), (3, 5, 10, 15)):
        asked = Drafting(strategy="lookahead", sources=("pool",), window=width, ngram=ngram, guesses=guesses)
        try:
            sizes[f"{width}, {ngram}, {guesses}"] = resolve(asked, engine.facts.max_rows)
        except DraftingError:
            continue
    founds = compare(engine, chosen, {PLAIN: ARMS[PLAIN], **sizes}, length, 1)
    rows = []
    for name, drafting in sizes.items():
        tokens, forwarded = (f"{total(founds, name, what):.2f}" for what in ("tokens", "rows"))
        cells = [f"{which(speeds(founds, name)):.2f}" for which in (statistics.median, min)]
        rows.append([name, num_rows(drafting), forwarded, tokens, *cells])
    header = ["W, N, G", "rows, most", "rows a step", "tokens a step", "speed, median", "speed, least"]
    loops = sum(found.loops for found in founds)
    table(f"Sizes of the window, {mode}: {len(founds)} texts, {loops} repeat themselves", header, rows)


def rows_table(engine: Engine) -> None:
    """A step of one session, its rows a tree of chains of 8."""
    model, facts = engine._model, engine.facts
    found = {}
    counts = [count for count in ROWS if count <= facts.max_rows]
    for cached in (64, 512, 1000):
        cache = POLICIES[facts.policy].new_cache(model.layout, Rule(4, facts.capacity, facts.block), max_rows=1000)
        model.extend(cache, ids(cached), 1)

        def step(count: int, cache: Any = cache) -> None:
            tree = Trie()
            for row in range(1, count):
                tree.grow(0 if row % 8 == 1 else row - 1, row)
            ancestors = None if count == 1 else tree.ancestors
            rank(model.forward(Step([Slice(cache, ids(count), count, ancestors)], model.device, model.groups)), WIDTH)

        found[cached] = medians({str(count): partial(step, count) for count in counts}, 9)
        print(f"rows at {cached} cached tokens: done", file=sys.stderr, flush=True)
    rows = []
    for count in counts:
        cells = []
        for cached, times in found.items():
            known = 1e3 * engine.costs(count, cached)
            cells.append(f"{times[str(count)]:.1f} ms, {times[str(count)] / times['1']:.2f}x ({known:.1f} ms)")
        rows.append([count, *cells])
    header = ["rows", *(f"{cached} cached" for cached in found)]
    table("What a step costs, and times one row (what the engine takes it to cost)", header, rows)


def batch_table(engine: Engine, chosen: Sequence[Case], mode: str, length: int, repeats: int) -> None:
    """Different prompts at once, until the last of them ends. Only full batches count, where there is one."""
    rows = []
    for first in range(0, max(1, len(chosen) - BATCH + 1), BATCH):
        batch = chosen[first : first + BATCH]
        runs: dict[str, list[Run]] = {PLAIN: [], "auto": []}
        for repeat, arm in itertools.product(range(repeats), runs):
            runs[arm].append(generate(fresh(engine), batch, ARMS[arm], length))
            speed = runs[arm][-1].tokens / runs[arm][-1].seconds
            told = f"batch {first // BATCH + 1}, {mode}, repeat {repeat + 1}: {arm} {speed:.1f} tokens/s"
            print(told, file=sys.stderr, flush=True)
        pace = [statistics.median(run.tokens / run.seconds for run in ran) for ran in runs.values()]
        auto = runs["auto"]
        forwards, steps = sum(run.forwards for run in auto), sum(run.steps for run in auto)
        texts = runs[PLAIN][0].texts
        rows.append(
            [
                first // BATCH + 1,
                *(f"{speed:.1f}" for speed in pace),
                f"{pace[1] / pace[0]:.2f}",
                f"{sum(run.tokens for run in auto) / steps:.2f}",
                f"{sum(run.rows for run in auto) / forwards:.1f}",
                sum(any(run.texts[index] != text for run in auto) for index, text in enumerate(texts)),
                sum(repeated(text) > LOOPING for text in texts),
            ]
        )
    header = ["batch", f"{PLAIN}, tokens/s", "auto, tokens/s", "ratio", "tokens a session's step", "rows a step"]
    title = f"{min(BATCH, len(chosen))} sessions at once, {mode}"
    table(title, [*header, "divergent", "repeat themselves"], rows)


def overhead_table(engine: Engine, modes: Mapping[str, Sequence[Case]], length: int) -> None:
    """Where a step's time goes."""
    spent: list[float] = []
    vars(engine_module)["rank"] = partial(_timed_rank, spent)
    rows = []
    for (mode, chosen), sessions, arm in itertools.product(modes.items(), (1, BATCH), (PLAIN, "auto")):
        batches: list[Sequence[Case]] = [[case] for case in chosen[:FEW]] if sessions == 1 else [chosen[:BATCH]]
        parts, steps = dict.fromkeys(("plan", "forward", "rank", "settle"), 0.0), 0
        for batch in batches:
            spent.clear()
            run = generate(fresh(engine), batch, ARMS[arm], length)
            steps += run.forwards
            parts["plan"] += run.parts["plan"]
            parts["forward"] += run.parts["run"]
            parts["rank"] += sum(spent[-run.forwards :])  # the first ones are those of prompts
            parts["settle"] += run.parts["settle"]
        parts["forward"] -= parts["rank"]
        whole = sum(parts.values())
        cells = [f"{1e3 * part / steps:.2f} ms, {part / whole:.1%}" for part in parts.values()]
        rows.append([f"{arm}, {mode}", len(batches[0]), *cells, f"{1 - parts['forward'] / whole:.1%}"])
        print("overhead:", *rows[-1], file=sys.stderr, flush=True)
    vars(engine_module)["rank"] = rank
    header = ["", "sessions", "plan", "forward", "rank", "settle", "all but the forward"]
    table("Where a step's time goes", header, rows)


def _timed_rank(spent: list[float], logits: Tensor, count: int) -> Ranked:
    if logits.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    ranked = rank(logits, count)
    spent.append(time.perf_counter() - began)
    return ranked


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """An argument that lists some of these."""

    def parse(text: str) -> list[str]:
        listed = [name.strip() for name in text.split(",")]
        if unknown := set(listed) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
        return listed

    return parse


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, kinds = parser.add_argument, list(dict.fromkeys(prompt.kind for prompt in PROMPTS))
    add("--model", default="default", help="as of sinkahead serve")
    add("--device", default="auto")
    add("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    add("--exact", default="auto", choices=["auto", "bits", "fast"])
    add("--threads", type=int, default=torch.get_num_threads())
    for name, known in (("tables", TABLES), ("arms", ARMS), ("modes", MODES), ("kinds", kinds)):
        add(f"--{name}", type=names(known), default=list(known), metavar="LIST", help=f"of {', '.join(known)}")
    add("--tokens", type=int, default=256, help="most of a text (default: 256)")
    add("--temperature", type=float, default=0.8, help="of sampled texts (default: 0.8)")
    add("--seeds", type=int, default=1, help="sampled texts of each prompt (default: 1)")
    add("--repeats", type=int, default=3, help="of each text, but not for the grid (default: 3)")
    add("--prompts", type=int, default=len(PROMPTS), help="most of each kind, tuned and held out in turn")
    add("--held-out", action="store_true", help="only prompts that were not looked at while tuning")
    add("--plot", type=Path, metavar="FILE", help="a PNG of the arms")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    path = model_files.resolve(arguments.model)
    engine = build(
        EngineOptions(
            model=str(path),
            device=arguments.device,
            dtype=arguments.dtype,
            threads=arguments.threads,
            exact=arguments.exact,
            memory_bytes=2**32,
        )
    )
    facts, length, repeats = engine.facts, arguments.tokens, arguments.repeats
    print(
        f"{path.name}, {facts.dtype} ({facts.exact}), {facts.device}, {facts.threads} threads, "
        f"torch {torch.__version__}; at most {length} tokens, medians of {repeats}",
        flush=True,
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    prompts = [prompt for prompt in PROMPTS if prompt.kind in arguments.kinds]
    prompts = [prompt for prompt in prompts if prompt.held_out or not arguments.held_out]
    modes = {}
    for mode in arguments.modes:
        title, temperature, seeds = mode, 0.0, 1
        if mode == "sampled":
            title, temperature, seeds = f"temperature {arguments.temperature}", arguments.temperature, arguments.seeds
        modes[title] = cases(tokenizer, prompts, arguments.prompts, temperature, seeds)
    first = next(iter(modes.values()))[:1]
    for drafting in ARMS.values():  # warms up
        generate(fresh(engine), first, drafting, 8)

    arms = {name: drafting for name, drafting in ARMS.items() if name in [PLAIN, *arguments.arms]}
    compared = {}
    for mode, chosen in modes.items() if "arms" in arguments.tables else ():
        compared[mode] = compare(engine, chosen, arms, length, repeats)
        arms_tables(compared[mode], mode)
    if compared and arguments.plot:
        plot(compared, arguments.plot)
    if "grid" in arguments.tables:
        mode, chosen = next(iter(modes.items()))
        grid_table(engine, chosen[:FEW], mode, length)
    if "rows" in arguments.tables:
        rows_table(engine)
    for mode, chosen in modes.items() if "batch" in arguments.tables else ():
        batch_table(engine, chosen, mode, length, repeats)
    if "overhead" in arguments.tables:
        overhead_table(engine, modes, length)


if __name__ == "__main__":
    main()
