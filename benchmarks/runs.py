"""Texts generated through the engine, as served, and what they took: by strategies that run in turn."""

import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.prompts import Prompt
from decoding.engine import Engine
from decoding.tally import Tally
from decoding.turn import Drafting, Fault, Sampling, Turn

PLAIN = "autoregressive"
WARM = "auto warm"  # what the engine learns is kept from prompt to prompt; for all others it starts empty
LOOPING = 0.25  # a text of which more 12-grams than this were there before repeats itself


@dataclass(frozen=True)
class Case:
    """A prompt, and how its answer is sampled."""

    name: str
    prompt: Prompt
    ids: list[int]
    sampling: Sampling


@dataclass
class Run:
    """One generation, of one session or several at once, behind prompts that are cached."""

    texts: list[list[int]]
    tally: Tally
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("plan", "run", "settle"), 0.0))  # seconds
    forwards: int = 0
    steps: int = 0  # forwards of each session, in sum
    rows: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass
class Found:
    """A case by every strategy, repeatedly."""

    case: Case
    runs: dict[str, list[Run]]

    def pace(self, arm: str) -> float:
        """Seconds a token: the median of the repeats."""
        return statistics.median(run.seconds / run.tokens for run in self.runs[arm])

    def speed(self, arm: str) -> float:
        """Against its own plain decoding."""
        return self.pace(PLAIN) / self.pace(arm)

    def diverged(self, arm: str) -> bool:
        """Whether any of the texts is not the plain one."""
        return any(run.texts != self.runs[PLAIN][0].texts for run in self.runs[arm])

    @property
    def loops(self) -> bool:
        """Whether the plain text repeats itself."""
        return repeated(self.runs[PLAIN][0].texts[0]) > LOOPING


def repeated(text: Sequence[int], length: int = 12) -> float:
    """Share of n-grams that were there before."""
    ngrams = [tuple(text[first : first + length]) for first in range(len(text) - length + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def total(founds: Sequence[Found], arm: str, above: str, below: str = "steps") -> float:
    """Quotient of two of a run's sums, over all texts and repeats."""
    runs = [run for found in founds for run in found.runs[arm]]
    return float(sum(getattr(run, above) for run in runs) / sum(getattr(run, below) for run in runs))


def cases(tokenizer: Any, prompts: Sequence[Prompt], most: int, temperature: float, seeds: int) -> list[Case]:
    """At most so many prompts of each kind; kinds come in turn, tuned and held-out prompts of a kind, too."""
    places: Counter[tuple[str, bool]] = Counter()
    numbered = []
    for prompt in prompts:
        places[prompt.kind, prompt.held_out] += 1
        numbered.append((places[prompt.kind, prompt.held_out], prompt.held_out, prompt))
    taken: Counter[str] = Counter()
    found = []
    for place, held_out, prompt in sorted(numbered, key=lambda entry: entry[:2]):
        taken[prompt.kind] += 1
        if taken[prompt.kind] > most:
            continue
        ids = list(tokenizer.apply_chat_template(prompt.messages, add_generation_prompt=True)["input_ids"])
        for seed in range(1, seeds + 1):
            name = f"{prompt.kind}{', held out' * held_out} {place}{f', seed {seed}' * (seeds > 1)}"
            found.append(Case(name, prompt, ids, Sampling(seed=seed, temperature=temperature)))
    return found


def fresh(engine: Engine) -> Engine:
    """One that has learnt nothing yet but what steps cost, with the same model."""
    return Engine(engine._model, engine.facts, engine.costs)


def generate(engine: Engine, batch: Sequence[Case], drafting: Drafting, length: int) -> Run:
    """All at once. Prompts are read before the time begins: by a turn of which only they are kept, but for a token."""
    engine.tally = Tally()
    end_ids = engine.facts.end_ids
    for index, case in enumerate(batch):
        engine.open(str(index), 4)
        _start(engine, index, case, case.ids[:-1], Drafting(strategy="autoregressive"), 1, [])
    while engine.has_work:
        engine.step()
    for index, case in enumerate(batch):
        engine.finish(str(index), len(case.ids) - 1)
        _start(engine, index, case, case.ids[-1:], drafting, length, end_ids)
    run = Run([[] for _ in batch], engine.tally)
    while engine.has_work:
        times = [time.perf_counter()]
        work = engine.plan()
        times.append(time.perf_counter())
        ranked = engine.run(work)
        times.append(time.perf_counter())
        for output in engine.settle(work, ranked):
            if isinstance(output, Fault):
                raise RuntimeError(output.reason)
            run.texts[int(output.session)] += output.tokens
        times.append(time.perf_counter())
        for part, (began, ended) in zip(run.parts, pairwise(times), strict=True):
            run.parts[part] += ended - began
        run.forwards += 1
        run.steps += len(work)
        run.rows += sum(1 if draft is None else len(draft) for _, draft in work)
    for index in range(len(batch)):
        engine.close(str(index))
    return run


def _start(
    engine: Engine, index: int, case: Case, ids: list[int], drafting: Drafting, length: int, ends: list[int]
) -> None:
    turn = Turn(
        session=str(index), tokens=ids, sampling=case.sampling, max_tokens=length, end_ids=ends, drafting=drafting
    )
    engine.start(turn)


def compare(
    engine: Engine, chosen: Sequence[Case], arms: Mapping[str, Drafting], length: int, repeats: int
) -> list[Found]:
    """Each case by all strategies in turn, forwards and backwards. Writes a line about each to stderr."""
    warm = [fresh(engine) for _ in range(repeats)]  # a repeat must not know what another has seen of the same text
    founds = []
    for number, case in enumerate(chosen, 1):
        found = Found(case, {arm: [] for arm in arms})
        for repeat in range(repeats):
            for arm in list(arms)[:: -1 if repeat % 2 else 1]:
                which = warm[repeat] if arm == WARM else fresh(engine)
                found.runs[arm].append(generate(which, [case], arms[arm], length))
        founds.append(found)
        about = [f"{number}/{len(chosen)} {case.name}, {found.runs[PLAIN][0].tokens} tokens{', loops' * found.loops}"]
        for arm in arms:
            told = f"{arm} {total([found], arm, 'tokens'):.2f} x{found.speed(arm):.2f}"
            about.append(told + " DIVERGES" * found.diverged(arm))
        print("; ".join(about), file=sys.stderr, flush=True)
    return founds
