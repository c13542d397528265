"""Sessions of an engine in any order of what can be done with them: each token is that of plain decoding.

Guards all that moves keys about: eviction, roll-backs, copies, parking and snapshots, whatever was drafted.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from decoding.budget import Costs
from decoding.engine import Engine
from decoding.turn import Drafting, Output, Sampling, Turn
from tests.driver import GREEDY, generate
from tests.talk import engine_for, octets, text_of

CAPACITY, BLOCK = 64, 8
MOST_SESSIONS = 4
PLAIN = Drafting(strategy="autoregressive")
DRAFTINGS = [
    PLAIN,
    Drafting(strategy="auto"),
    Drafting(strategy="jacobi", window=6),
    Drafting(strategy="lookahead"),
    Drafting(strategy="lookahead", window=3, ngram=3, guesses=3),
]


class Fixed(Costs):
    """Rows cost next to nothing, and no clock changes that: a seed is the same run every time."""

    def __init__(self) -> None:
        super().__init__([1, 128], [1, 2], [[1.0, 1.1], [1.0, 1.1]])

    def observe(self, rows: int, cached: int, sessions: int, seconds: float) -> None:
        pass


@dataclass(eq=False)
class Told:
    """A session as it must be."""

    name: str
    sinks: int
    ids: list[int] = field(default_factory=list)
    sampling: Sampling = GREEDY
    prompt: int | None = None  # where the running turn's answer begins; None: there is none
    parked: bool = False


@dataclass(frozen=True)
class Answer:
    """What a session generated behind a prompt."""

    moment: int  # things that were done by then
    sinks: int
    sampling: Sampling
    prompt: list[int]
    tokens: list[int]


def differing(answers: list[Answer], plain: Engine) -> list[Answer]:
    """Those that plain decoding of the same ids, from the first one on, does not give."""
    found = []
    answers = sorted(answers, key=lambda one: (one.sinks, len(one.tokens)))
    for (sinks, _), group in groupby(answers, key=lambda one: (one.sinks, len(one.tokens) // 4)):
        some = list(group)
        prompts, samplings = [one.prompt for one in some], [one.sampling for one in some]
        most = max(len(one.tokens) for one in some)
        texts = generate(plain, prompts, most, sampling=samplings, sinks=sinks, drafting=PLAIN)
        found += [one for one, text in zip(some, texts, strict=True) if one.tokens != text[: len(one.tokens)]]
    return sorted(found, key=lambda one: one.moment)


class Life:
    """Of an engine and its sessions; does one random thing after the other."""

    def __init__(self, engine: Engine, folder: Path, seed: int) -> None:
        self._engine, self._folder = engine, folder
        engine.costs = Fixed()
        self._draw = random.Random(seed)
        self._sessions: list[Told] = []
        self._latest: Told | None = None
        self._files: list[tuple[Path, Told, list[int]]] = []  # snapshots, of whom, and their ids at that time
        self._names = 0
        self.done: list[str] = []
        self.answers: list[Answer] = []

    def act(self) -> None:
        actions: dict[Callable[[], None], int] = {
            self._open: 1, self._start: 8, self._step: 12, self._finish: 4, self._park: 1, self._resume: 4,
            self._save: 2, self._bring_back: 6, self._reopen: 2, self._fork: 1, self._close: 1,
        }  # fmt: skip
        (action,) = self._draw.choices(list(actions), list(actions.values()))
        action()

    def end(self) -> None:
        while self._engine.has_work:
            self._step()
        assert not any(told.prompt for told in self._sessions)
        for told in self._sessions:
            self._engine.close(told.name)

    # What can be done

    def _open(self) -> None:
        if self._draw.random() < 0.5:
            self._add(Told(self._name(), self._draw.choice([0, 4, 4, 12])))
        else:
            ids = self._text(150)
            self._add(Told(self._name(), min(4, len(ids)), ids))

    def _add(self, told: Told, snapshot: Path | None = None) -> None:
        if len(self._sessions) == MOST_SESSIONS:
            self._close()
        self._did(f"open {told.name} with {len(told.ids)} ids, {snapshot and snapshot.name}")
        self._engine.open(told.name, told.sinks, octets(told.ids), snapshot)
        self._sessions.append(told)
        self._latest = told

    def _start(self) -> None:
        told = self._any(lambda one: one.prompt is None and not one.parked)
        if told is None:
            return
        keep = self._draw.choice([None, self._place(told)]) if told.ids else None
        snapshot = self._draw.choice([None, *(path for path, of, _ in self._files if of is told)])
        tokens = self._text(self._draw.choice([1, 6, 6, 6, 12, 70]))
        told.ids = [*told.ids[:keep], *tokens]
        told.prompt, told.sampling = len(told.ids), self._sampling()
        turn = Turn(
            session=told.name,
            tokens=tokens,
            sampling=told.sampling,
            max_tokens=self._draw.randrange(1, 16),
            end_ids=self._draw.sample(range(3, 250), 3),
            drafting=self._draw.choice(DRAFTINGS),
            prediction=self._text(20),
        )
        self._did(f"start {told.name} behind {keep} with {len(tokens)} tokens, {turn.drafting}")
        self._engine.start(turn, keep, snapshot)

    def _step(self) -> None:
        if not self._engine.has_work:
            return
        self._did("step")
        for output in self._engine.step():
            assert isinstance(output, Output), output
            told = next(one for one in self._sessions if one.name == output.session)
            told.ids += output.tokens
            assert len(told.ids) == output.length
            if output.finish is not None:
                self._check(told)

    def _finish(self) -> None:
        """A turn that runs, as for a stop string or a client that goes away; or a roll-back."""
        if told := self._any():
            self._check(told)
            keep, snapshot = (
                self._place(told),
                self._draw.choice([None, *(path for path, of, _ in self._files if of is told)]),
            )
            self._did(f"finish {told.name} at {keep} of {len(told.ids)}")
            del told.ids[keep:]
            assert self._engine.finish(told.name, keep, snapshot) == len(told.ids)

    def _park(self) -> None:
        if told := self._any(lambda one: one.prompt is None and not one.parked):
            self._did(f"park {told.name}")
            self._engine.park(told.name)
            told.parked = True

    def _resume(self) -> None:
        if told := self._any(lambda one: one.parked):
            self._did(f"resume {told.name}")
            self._engine.resume(told.name)
            told.parked = False

    def _save(self) -> None:
        if told := self._any(lambda one: bool(one.ids)):
            self._write(told)

    def _write(self, told: Told) -> Path:
        path = self._folder / f"{len(self._files)}"
        self._did(f"save {told.name} with {len(told.ids)} ids as {path.name}")
        self._engine.snapshot(told.name).write(path)
        self._files.append((path, told, list(told.ids)))
        return path

    def _bring_back(self) -> None:
        """All of it, as after a restart."""
        if told := self._any(lambda one: one.prompt is None and bool(one.ids)):
            path = self._write(told)
            self._drop(told)
            self._add(Told(self._name(), told.sinks, told.ids), path)

    def _reopen(self) -> None:
        """From a file, with ids that go on from it, end before it, or part from it somewhere."""
        if not self._files:
            return
        path, told, ids = self._draw.choice(self._files[-4:])
        match self._draw.randrange(4):
            case 0:
                ids = [*ids, *self._text(20)]
            case 1:
                ids = ids[: self._draw.randrange(len(ids)) + 1]
            case 2:
                ids = [*ids[: -self._draw.randrange(1, 12)], *self._text(6)]
        if self._draw.random() < 0.7 and told in self._sessions:
            self._drop(told)
        self._add(Told(self._name(), min(told.sinks, len(ids)), list(ids)), path)

    def _fork(self) -> None:
        if source := self._any(lambda one: bool(one.ids)):
            if len(self._sessions) == MOST_SESSIONS:
                return
            keep = self._place(source)
            copy = Told(self._name(), source.sinks, source.ids[:keep])
            self._did(f"fork {source.name} at {keep} of {len(source.ids)} as {copy.name}")
            self._engine.fork(source.name, copy.name, keep)
            self._sessions.append(copy)

    def _close(self) -> None:
        if told := self._any():
            self._drop(told)

    # Within

    def _drop(self, told: Told) -> None:
        self._check(told)
        self._did(f"close {told.name}")
        self._engine.close(told.name)
        self._sessions.remove(told)

    def _check(self, told: Told) -> None:
        """What its turn has generated so far is to be compared; the turn is over."""
        if told.prompt is not None:
            prompt, answer = told.ids[: told.prompt], told.ids[told.prompt :]
            told.prompt = None
            if answer:
                self.answers.append(Answer(len(self.done), told.sinks, told.sampling, prompt, answer))

    def _any(self, which: Callable[[Told], bool] = lambda _: True) -> Told | None:
        """Most often the same one again: what goes wrong takes several things in a row."""
        fitting = [told for told in self._sessions if which(told)]
        if not fitting:
            return None
        if self._latest not in fitting or self._draw.random() < 0.25:
            self._latest = self._draw.choice(fitting)
        return self._latest

    def _place(self, told: Told) -> int:
        """As a rule near the end, where the cache can be rolled back to."""
        back = self._draw.choice(
            [0, self._draw.randrange(1, 16), self._draw.randrange(1, 16), self._draw.randrange(1, 100)]
        )
        return max(0, len(told.ids) - back)

    def _sampling(self) -> Sampling:
        draw = self._draw
        if draw.random() < 0.5:
            return GREEDY
        penalties: dict[str, Any] = {"repetition_penalty": 1.2, "presence_penalty": 0.5} if draw.random() < 0.3 else {}
        filters: dict[str, Any] = draw.choice([{}, {"top_k": 8}, {"top_p": 0.9}, {"min_p": 0.05}])
        return Sampling(seed=draw.randrange(2**63), temperature=draw.choice([0.3, 0.8, 1.2]), **filters, **penalties)

    def _text(self, most: int) -> list[int]:
        return text_of(self._draw.randrange(1, most + 1), self._draw.randrange(1000))

    def _name(self) -> str:
        self._names += 1
        return f"s{self._names}"

    def _did(self, what: str) -> None:
        self.done.append(what)


@pytest.mark.parametrize(("seed", "max_rows"), [(0, 128), (1, 40), (4, 40)])
def test_whatever_is_done_with_sessions_tokens_are_those_of_plain_decoding(
    tiny_model: Path, tmp_path: Path, seed: int, max_rows: int
) -> None:
    options: dict[str, Any] = {"capacity": CAPACITY, "block": BLOCK, "memory_bytes": 2**30}
    life = Life(engine_for(tiny_model, max_rows=max_rows, **options), tmp_path, seed)
    for _ in range(600):
        life.act()
    life.end()
    assert sum(len(one.tokens) for one in life.answers) > 200
    if found := differing(life.answers, engine_for(tiny_model, head_bytes=0, **options)):
        raise AssertionError(f"{found[0]}, after: {life.done[: found[0].moment]}")
