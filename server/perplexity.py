"""`sinkahead eval ppl`: one text under several cache policies, as a table, a JSON file each, and a plot."""

import argparse
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from server import model_files

if TYPE_CHECKING:  # brings torch, which --help does not need
    from cache.rule import Rule
    from decoding.model import Model

DESCRIPTION = "Perplexity of a text under each cache policy: what attention sinks keep, and what a bare window loses."
POLICIES = ("dense", "window", "recompute", "sinks")
SAVE_SECONDS = 20.0


class EvaluationError(Exception):
    """An evaluation that cannot be made as asked; the message says why."""


@dataclass
class Run:
    """One policy over one text. `losses[i]` is that of text position first + 1 + i."""

    policy: str
    settings: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cache_bytes: int = 0
    peak_bytes: int = 0  # of the process, resident
    complete: bool = False

    @classmethod
    def load(cls, folder: Path, policy: str, settings: dict[str, Any]) -> "Run":
        """What an earlier run with the same settings left in the folder, else a new one."""
        run = cls(policy, settings)
        if run.path(folder).exists():
            saved = cls(**json.loads(run.path(folder).read_text()))
            if saved.settings == settings:
                return saved
        return run

    def path(self, folder: Path) -> Path:
        key = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        return folder / f"ppl-{self.policy}-C{self.settings['capacity']}-B{self.settings['block']}-{key}.json"

    def save(self, folder: Path) -> None:
        """Whole or not at all."""
        partial = self.path(folder).with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self)))
        partial.replace(self.path(folder))


def positive(text: str) -> int:
    """An argument that is a count."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def check_capacity(model: "Model", capacity: int) -> None:
    """Raises EvaluationError where queries would see more than the model was trained on; `dense` is there to do so."""
    from decoding.served import trained_context

    if capacity > (trained := trained_context(model.config)):
        raise EvaluationError(f"--capacity {capacity}: the model was trained on {trained} tokens")


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every evaluation: what is read, by which model, through which cache."""
    add = parser.add_argument
    add("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text to read")
    add("--model", default="default", metavar="MODEL", help="as of serve --model")
    add("--capacity", type=positive, default=1024, metavar="C", help="most keys a query sees (default: 1024)")
    add("--sinks", type=int, default=4, metavar="S", help="first tokens that stay (default: 4)")
    add("--block", type=positive, default=64, metavar="B", help="tokens evicted at a time (default: 64)")
    types = ["float32", "bfloat16", "float64"]
    add("--dtype", default="float32", choices=types, help="what is computed in (default: float32)")
    add("--device", default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (default: auto)")
    add("--chunk", type=positive, default=128, metavar="ROWS", help="rows of a forward (default: 128)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    add_reading_arguments(parser)
    add, names = parser.add_argument, ",".join(POLICIES)
    add("--policies", default=names, metavar="LIST", help=f"default: {names}")
    add("--tokens", type=positive, default=16_384, metavar="N", help="tokens to read (default: 16384)")
    add("--first", type=int, default=0, metavar="P", help="leave out the losses before this position")
    add("--out", type=Path, default=Path("ppl"), metavar="FOLDER", help="for results (default: ppl)")
    add("--max-gap", type=float, metavar="PERCENT", help="fail where sinks exceed recompute by more")
    parser.set_defaults(run=main)


def main(arguments: argparse.Namespace) -> int:
    """Each policy is computed once: what lies in --out with the same settings is taken, recompute also half done."""
    runs = list(_runs(arguments))
    console = Console()
    console.print(_by_range(runs), _by_cost(runs))
    names = {run.policy: run for run in runs}
    plot = arguments.out / f"ppl-C{arguments.capacity}-B{arguments.block}.png"
    _plot(runs, arguments, plot)
    console.print(f"{plot}, and a JSON file for each policy beside it")
    if {"sinks", "recompute"} <= names.keys():
        return _compare(names["sinks"], names["recompute"], arguments.max_gap)
    return 0


def _runs(arguments: argparse.Namespace) -> Iterator[Run]:
    import torch
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from decoding.model import Model, resolve_device

    policies = _policies(arguments)
    disable_progress_bar()
    path = model_files.resolve(arguments.model)
    try:
        text = arguments.text.read_text(encoding="utf-8")
        arguments.out.mkdir(parents=True, exist_ok=True)
    except (OSError, UnicodeDecodeError) as error:
        raise EvaluationError(f"--text {arguments.text}, --out {arguments.out}: {error}") from None
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    ids = tokenizer(text, verbose=False)["input_ids"][: arguments.tokens]
    if len(ids) < arguments.tokens:
        print(f"The text gives {len(ids):,} of {arguments.tokens:,} tokens", file=sys.stderr)
    if len(ids) < 2 or not 0 <= arguments.first < len(ids) - 1:
        raise EvaluationError(f"--first {arguments.first}: the text gives {len(ids)} tokens")
    model = Model(path, resolve_device(arguments.device), getattr(torch, arguments.dtype))
    if policies != ["dense"]:
        check_capacity(model, arguments.capacity)
    for policy in policies:
        settings = {
            name: getattr(arguments, name) for name in ("capacity", "sinks", "block", "first", "dtype", "chunk")
        }
        settings |= {"model": path.name, "ids": hashlib.sha256(json.dumps(ids).encode()).hexdigest()}
        if policy == "dense":
            settings["capacity"] = len(ids)
        run = Run.load(arguments.out, policy, settings)
        if not run.complete:
            _complete(run, model, ids, arguments.out)
        yield run


def _policies(arguments: argparse.Namespace) -> list[str]:
    """Those asked for, with all that can be known to be wrong before anything is computed."""
    policies: list[str] = arguments.policies.split(",")
    if unknown := [name for name in policies if name not in POLICIES]:
        raise EvaluationError(f"--policies {unknown[0]}: there are {', '.join(POLICIES)}")
    if arguments.max_gap is not None and not {"sinks", "recompute"} <= set(policies):
        raise EvaluationError("--max-gap compares sinks with recompute: --policies must name both")
    for name in policies:
        _rule(name, arguments.sinks, arguments.capacity, arguments.block)
    return policies


def _rule(policy: str, sinks: int, capacity: int, block: int) -> "Rule":
    from cache.policy import POLICIES as KINDS

    try:
        return KINDS[policy].rule(sinks, capacity, block)
    except ValueError as error:
        raise EvaluationError(f"--sinks, --capacity, --block: {error}") from None


def _complete(run: Run, model: "Model", ids: list[int], folder: Path) -> None:
    import psutil

    from cache.policy import POLICIES as KINDS
    from decoding.perplexity import losses

    policy, settings = KINDS[run.policy], run.settings
    rule = _rule(run.policy, settings["sinks"], settings["capacity"], settings["block"])
    if not policy.restarts:  # its cache is not saved: begin again
        run.losses, run.seconds = [], 0.0
    run.cache_bytes = policy.cache.bytes(model.layout, rule, max_rows=settings["chunk"])
    first = settings["first"] + len(run.losses)
    process, saved = psutil.Process(), time.monotonic()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(run.policy, total=len(ids) - 1 - settings["first"], completed=len(run.losses))
        began = time.monotonic()
        for piece in losses(model, policy, rule, ids, first=first, chunk=settings["chunk"]):
            run.seconds, began = run.seconds + time.monotonic() - began, time.monotonic()
            run.losses += piece
            run.peak_bytes = max(run.peak_bytes, process.memory_info().rss)
            progress.update(task, completed=len(run.losses))
            if policy.restarts and time.monotonic() - saved > SAVE_SECONDS:
                run.save(folder)
                saved = time.monotonic()
    run.complete = True
    run.save(folder)


def _by_range(runs: list[Run]) -> Table:
    """Perplexity of each 1,024 tokens."""
    table = Table(title="Perplexity by text position", box=None)
    table.add_column("tokens")
    for run in runs:
        table.add_column(run.policy, justify="right")
    first, count = runs[0].settings["first"], len(runs[0].losses)
    for start in range(0, count, 1024):
        stop = min(start + 1024, count)
        cells = [f"{math.exp(statistics.fmean(run.losses[start:stop])):.2f}" for run in runs]
        table.add_row(f"{first + start:,} to {first + stop:,}", *cells)
    table.add_row("all", *(f"{math.exp(statistics.fmean(run.losses)):.2f}" for run in runs))
    return table


def _by_cost(runs: list[Run]) -> Table:
    table = Table("policy", "tokens/s", "ms a token", "cache, MiB", "process, MiB", title="Cost", box=None)
    for run in runs:
        each = run.seconds / len(run.losses)
        sizes = (f"{size / 2**20:,.0f}" for size in (run.cache_bytes, run.peak_bytes))
        table.add_row(run.policy, f"{1 / each:,.1f}", f"{1e3 * each:.2f}", *sizes)
    return table


def _compare(sinks: Run, recompute: Run, max_gap: float | None) -> int:
    """The paired difference of the losses where anything is evicted; 1 where it is past the bound and its error."""
    begin = max(0, sinks.settings["capacity"] - sinks.settings["first"])
    gaps = [a - b for a, b in zip(sinks.losses[begin:], recompute.losses[begin:], strict=True)]
    if len(gaps) < 2:
        print("Nothing was evicted: sinks and recompute are the same")
        return 0 if max_gap is None else 1
    mean, error = statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    print(
        f"sinks against recompute, {len(gaps):,} positions after the first eviction: "
        f"loss {mean:+.4f} nats; perplexity {100 * math.expm1(mean):+.2f}%, standard error {100 * error:.2f}%"
    )
    if max_gap is not None and mean > math.log1p(max_gap / 100) + 2 * error:
        print(f"That is more than {max_gap:g}% and two standard errors", file=sys.stderr)
        return 1
    return 0


def _plot(runs: list[Run], arguments: argparse.Namespace, path: Path) -> None:
    """The paper's figure: log perplexity against text position, one line a policy, means of 256 tokens."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5), dpi=120)
    for run in runs:
        starts = range(0, len(run.losses), 256)
        middles = [run.settings["first"] + start + 128 for start in starts]
        axes.plot(middles, [statistics.fmean(run.losses[s : s + 256]) for s in starts], label=run.policy, linewidth=1.4)
    axes.axvline(arguments.capacity, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="text position",
        ylabel="log perplexity (nats)",
        title=f"capacity {arguments.capacity}, {arguments.sinks} sinks",
    )
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})  # the same bytes on a second run
    plt.close(figure)
