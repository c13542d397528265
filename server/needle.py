"""`sinkahead eval needle`: a fact in a long text, asked for nearer and further from where it stood."""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from server import model_files
from server.perplexity import EvaluationError, add_reading_arguments, check_capacity, positive

if TYPE_CHECKING:
    from cache.policy import Policy
    from cache.rule import Rule
    from decoding.model import Model

DESCRIPTION = "Recall of a fact, by its distance: inside the window, outside of it, and in the pinned block."
CHOICES = 10
LEAD = 128  # tokens of text before the fact, where it is not pinned
DISTANCES = (0.25, 0.5, 0.75, 1.25, 2.0, 4.0)  # from the fact to the question, in capacities
FACT = "\n\nThe pass key is {key}. Remember it: {key} is the pass key.\n\n"
QUESTION = "\n\nWhat is the pass key? The pass key is"


@dataclass
class Arrangement:
    """One way to keep the text, and how often the fact was told at each distance."""

    name: str
    policy: "Policy"
    rule: "Rule"
    pinned: bool  # whether the text begins with the fact
    right: list[int] = field(default_factory=lambda: [0] * len(DISTANCES))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    add_reading_arguments(parser)
    add = parser.add_argument
    add("--trials", type=positive, default=10, metavar="N", help="facts and places in the text (default: 10)")
    add("--seed", type=int, default=0, metavar="N", help="of keys and places (default: 0)")
    add("--out", type=Path, metavar="FILE", help="JSON file for the results")
    parser.set_defaults(run=main)


def main(arguments: argparse.Namespace) -> int:
    """The same seed asks for the same facts in the same places, under each arrangement."""
    import torch
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from decoding.model import Model, resolve_device

    disable_progress_bar()
    folder = model_files.resolve(arguments.model)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    try:
        text = tokenizer(arguments.text.read_text(encoding="utf-8"), verbose=False)["input_ids"]
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(str(error)) from None
    longest = LEAD + round(DISTANCES[-1] * arguments.capacity)
    if len(text) < longest:
        raise EvaluationError(f"--text: the text gives {len(text):,} tokens, and {longest:,} are needed")
    if arguments.out and not arguments.out.parent.is_dir():
        raise EvaluationError(f"--out: {arguments.out.parent} is no folder")
    model = Model(folder, resolve_device(arguments.device), getattr(torch, arguments.dtype))
    check_capacity(model, arguments.capacity)
    arrangements = _arrangements(arguments, longest, len(_encode(tokenizer, FACT.format(key="00000"))))
    with Progress(console=Console(stderr=True)) as progress:
        for number in progress.track(range(arguments.trials), description="trials"):
            rng = random.Random(f"{arguments.seed} {number}")
            begin = rng.randrange(len(text) - longest + 1)
            keys = _keys(rng, tokenizer)
            for arrangement in arrangements:
                _trial(model, tokenizer, arrangement, text[begin : begin + longest], keys, arguments)
    _report(arrangements, arguments)
    return 0


def _arrangements(arguments: argparse.Namespace, longest: int, fact: int) -> list[Arrangement]:
    from cache.policy import POLICIES

    whole = longest + 2 * fact + 64  # and a question, and an answer
    ways = [("dense", "dense", whole, False), ("sinks", "sinks", arguments.capacity, False)]
    ways.append(("sinks, fact pinned", "sinks", arguments.capacity, True))
    try:
        POLICIES["sinks"].rule(arguments.sinks, arguments.capacity, arguments.block)  # what a user gave is named first
        return [
            Arrangement(
                name,
                POLICIES[policy],
                POLICIES[policy].rule(fact if pinned else arguments.sinks, capacity, arguments.block),
                pinned,
            )
            for name, policy, capacity, pinned in ways
        ]
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _trial(
    model: "Model",
    tokenizer: Any,
    arrangement: Arrangement,
    text: Sequence[int],
    keys: Sequence[str],
    arguments: argparse.Namespace,
) -> None:
    """One text, once through; at each distance the question is asked and rolled back."""
    from decoding.recall import most_likely, read

    chunk = arguments.chunk
    cache = arrangement.policy.new_cache(model.layout, arrangement.rule, max_rows=chunk)
    fact = _encode(tokenizer, FACT.format(key=keys[0]))
    question = _encode(tokenizer, QUESTION)
    answers = [_encode(tokenizer, f" {key}.") for key in keys]
    lead = 0 if arrangement.pinned else LEAD
    read(model, cache, [*text[:lead], *fact], chunk=chunk)
    done = 0
    for index, distance in enumerate(DISTANCES):
        upto = round(distance * arguments.capacity) - len(question)
        read(model, cache, text[lead + done : lead + upto], chunk=chunk)
        done = upto
        arrangement.right[index] += most_likely(model, cache, question, answers, chunk=chunk) == 0


def _keys(rng: random.Random, tokenizer: Any) -> list[str]:
    """Keys of five digits, equally many tokens each; the first one is the fact's."""
    keys: list[str] = []
    while len(keys) < CHOICES:
        key = str(rng.randrange(10_000, 100_000))
        if key not in keys and (not keys or len(_encode(tokenizer, key)) == len(_encode(tokenizer, keys[0]))):
            keys.append(key)
    return keys


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _report(arrangements: Sequence[Arrangement], arguments: argparse.Namespace) -> None:
    title = f"Told rightly, of {arguments.trials}; {CHOICES} keys to choose from, capacity {arguments.capacity:,}"
    table = Table("tokens from the fact to the question", title=title, box=None)
    for arrangement in arrangements:
        table.add_column(arrangement.name, justify="right")
    for index, distance in enumerate(DISTANCES):
        table.add_row(
            f"{round(distance * arguments.capacity):,}",
            *(str(arrangement.right[index]) for arrangement in arrangements),
        )
    Console().print(table)
    if arguments.out:
        settings = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(arguments).items()
            if name not in ("run", "out")
        }
        results = {arrangement.name: arrangement.right for arrangement in arrangements}
        arguments.out.write_text(json.dumps({"settings": settings, "distances": DISTANCES, "right": results}, indent=1))
