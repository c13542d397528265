"""Texts of every strategy against plain decoding's, token for token: alone, and eight at once.

The oracle is plain decoding of one session.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.measure import table
from benchmarks.prompts import PROMPTS
from benchmarks.runs import PLAIN, Case, cases, fresh, generate
from decoding.build import build
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.turn import Drafting
from server import model_files

BATCH = 8
ARMS = {
    PLAIN: Drafting(strategy="autoregressive"),
    "jacobi": Drafting(strategy="jacobi"),
    "lookahead": Drafting(strategy="lookahead"),
    "auto": Drafting(),
}


@dataclass
class Count:
    """Texts that were compared, and what was found."""

    texts: int = 0
    tokens: int = 0
    steps: int = 0
    divergent: int = 0

    def __str__(self) -> str:
        if not self.texts:
            return "-"
        return f"{self.divergent} of {self.texts} ({self.tokens:,} tokens, {self.tokens / self.steps:.2f} a step)"


def compare(engine: Engine, chosen: Sequence[Case], length: int, mode: str) -> dict[str, tuple[Count, Count]]:
    """Of each strategy: texts alone, and in batches."""
    counts = {arm: (Count(), Count()) for arm in ARMS}
    for batch in _batches(chosen, BATCH):
        oracle = _texts(engine, batch, PLAIN, length, Count(), 1)
        for arm, (alone, batched) in counts.items():
            for count, size in ((batched, BATCH), (alone, 1)):
                if arm == PLAIN and size == 1:
                    continue
                texts = _texts(engine, batch, arm, length, count, size)
                differ = [case.name for case, text, right in zip(batch, texts, oracle, strict=True) if text != right]
                count.divergent += len(differ)
                told = f"{mode}, {arm}, {size} at once: {count}"
                print(told, *differ, sep="; ", file=sys.stderr, flush=True)
    return counts


def _batches(chosen: Sequence[Case], size: int) -> Iterator[Sequence[Case]]:
    return (chosen[first : first + size] for first in range(0, len(chosen), size))


def _texts(engine: Engine, chosen: Sequence[Case], arm: str, length: int, count: Count, size: int) -> list[list[int]]:
    texts = []
    for batch in _batches(chosen, size):
        run = generate(fresh(engine), batch, ARMS[arm], length)
        texts += run.texts
        count.texts += len(run.texts)
        count.tokens += run.tokens
        count.steps += run.steps
    return texts


def tables(found: Mapping[str, Mapping[str, tuple[Count, Count]]], title: str) -> None:
    rows = [[f"{arm}, {mode}", *counts] for mode, arms in found.items() for arm, counts in arms.items()]
    table(title, ["divergent texts of", "alone", f"{BATCH} at once"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="default", help="as of sinkahead serve")
    add("--device", default="auto")
    add("--dtype", default="float32", choices=["bfloat16", "float32"])
    add("--exact", default="auto", choices=["auto", "bits", "fast"])
    add("--threads", type=int, default=torch.get_num_threads())
    add("--tokens", type=int, default=256, help="most of a text (default: 256)")
    add("--temperature", type=float, default=0.8, help="of sampled texts (default: 0.8)")
    add("--prompts", type=int, default=40, help="how many, kinds in turn (default: 40)")
    arguments = parser.parse_args()
    path = model_files.resolve(arguments.model)
    options = EngineOptions(
        model=str(path),
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        exact=arguments.exact,
        memory_bytes=2**32,
    )
    engine = build(options)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    found = {}
    for temperature in (0.0, arguments.temperature):
        mode = f"temperature {temperature:g}" if temperature else "greedy"
        chosen = cases(tokenizer, PROMPTS, len(PROMPTS), temperature, 1)[: arguments.prompts]
        found[mode] = compare(engine, chosen, arguments.tokens, mode)
    facts = engine.facts
    tables(found, f"{path.name}, {facts.dtype} ({facts.exact}), {facts.device}, at most {arguments.tokens} tokens")


if __name__ == "__main__":
    main()
