"""Penalties, biases and min_tokens against plain Python, token by token, whatever was drafted and accepted."""

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from cache.rule import Rule
from decoding.budget import Costs
from decoding.build import build
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.processors import Processor
from decoding.sampling import choose
from decoding.turn import Drafting, Output, Sampling, Turn
from tests import oracle
from tests.driver import GREEDY

SINKS, CAPACITY, BLOCK = 4, 64, 8
LOOPING = [70, 71, 72, 73, 74, 75] * 5  # repeats, so that guesses are made and some of them come true
END_IDS = [2, 9, 33]
SAMPLED = Sampling(seed=5, temperature=0.7, top_p=0.9)
PROCESSED: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 0.7},
    "presence, negative": {"presence_penalty": -1.5},
    "frequency": {"frequency_penalty": 0.2},
    "frequency, negative": {"frequency_penalty": -0.1},
    "repetition": {"repetition_penalty": 1.1},
    "repetition, below 1": {"repetition_penalty": 0.9},
    "bias": {"logit_bias": {70: 3.0, 71: -100.0, 200: 4.0, 258: 2.5}},
    "all": {
        "presence_penalty": 0.3,
        "frequency_penalty": -0.1,
        "repetition_penalty": 0.95,
        "logit_bias": {70: 2.0, 2: 1.0, 9: 20.0},
    },
}


@pytest.fixture(scope="module")
def built(tiny_model: Path) -> Engine:
    options = EngineOptions(
        model=str(tiny_model), device="cpu", dtype="float32", capacity=CAPACITY, block=BLOCK, memory_bytes=2**28
    )
    return build(options)


@pytest.fixture
def engine(built: Engine) -> Iterator[Engine]:
    """One for all tests, and no session in it when one begins. Rows cost next to nothing, as busy as the machine is."""
    built.costs = Costs([1, 128], [1, 2], [[1.0, 1.1], [1.0, 1.1]])
    yield built
    for session in list(built._sessions):
        built.close(session)


def run(engine: Engine, turn: Turn) -> list[list[int]]:
    """What each step of the turn generated, in a session of its own."""
    engine.open(turn.session, SINKS)
    engine.start(turn)
    steps = []
    while engine.has_work:
        for result in engine.step():
            assert isinstance(result, Output), result
            steps.append(result.tokens)
    engine.close(turn.session)
    return steps


def slow(engine: Engine, turn: Turn) -> list[int]:
    """The definitions over lists and floats; the logits come from a new session that reads all anew for each token."""
    asked, ids, generated = turn.sampling, list(turn.tokens), list[int]()
    while len(generated) < turn.max_tokens and not (generated and generated[-1] in turn.end_ids):
        row = [float(logit) for logit in raw_logits(engine, ids)]
        gone = oracle.evicted(len(ids) - 1, CAPACITY, BLOCK)
        visible = {token for at, token in enumerate(ids) if at < SINKS or at >= SINKS + gone}
        for token in range(len(row)):
            if token in visible:
                repeated = asked.repetition_penalty
                row[token] = row[token] / repeated if row[token] > 0 else row[token] * repeated
            count = generated.count(token)
            row[token] -= asked.frequency_penalty * count + asked.presence_penalty * (count > 0)
            if token in asked.logit_bias:
                row[token] += asked.logit_bias[token]
            if token in turn.end_ids and len(generated) < turn.min_tokens:
                row[token] = -math.inf
        if asked.temperature == 0:
            token = row.index(max(row))
        else:
            token = choose(torch.tensor(row, dtype=torch.float64), asked, len(ids))
        ids.append(token)
        generated.append(token)
    return generated


def raw_logits(engine: Engine, ids: Sequence[int]) -> list[float]:
    """What the model says behind the ids, before anything changes it."""
    engine.open("raw", SINKS)
    engine.start(Turn(session="raw", tokens=list(ids), sampling=GREEDY, max_tokens=1, end_ids=[]))
    while True:
        work = engine.plan()
        ranked = engine.run(work)
        if engine.settle(work, ranked):
            engine.close("raw")
            logits: list[float] = ranked.logits[0].tolist()
            return logits


def turn_of(sampling: Sampling, changes: dict[str, Any], **more: Any) -> Turn:
    prompt = [1, *random.Random(1).choices(range(3, 259), k=12), *LOOPING]
    fields: dict[str, Any] = {"max_tokens": 60, "end_ids": []} | more
    return Turn(session="s", tokens=prompt, sampling=msgspec.structs.replace(sampling, **changes), **fields)


def flat(steps: list[list[int]]) -> list[int]:
    return [token for tokens in steps for token in tokens]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("changes", PROCESSED.values(), ids=PROCESSED.keys())
def test_each_token_is_that_of_the_definitions(engine: Engine, sampling: Sampling, changes: dict[str, Any]) -> None:
    """103 tokens at the end, of which the last 39 evict; and every change does change the text."""
    turn = turn_of(sampling, changes, end_ids=END_IDS, min_tokens=60)
    plain = msgspec.structs.replace(turn, drafting=Drafting(strategy="autoregressive"))
    text = flat(run(engine, plain))
    assert text == slow(engine, turn)
    unchanged = msgspec.structs.replace(plain, sampling=sampling)
    assert text != flat(run(engine, unchanged))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("strategy", ["auto", "lookahead", "jacobi"])
def test_what_is_drafted_changes_nothing(engine: Engine, strategy: Any, sampling: Sampling) -> None:
    """Rows are processed at their own prefix, accepted drafts included: some step must have accepted several."""
    most = 0
    for changes in PROCESSED.values():
        turn = turn_of(sampling, changes, max_tokens=120, end_ids=END_IDS, min_tokens=50)
        want = run(engine, msgspec.structs.replace(turn, drafting=Drafting(strategy="autoregressive")))
        assert {len(tokens) for tokens in want} == {1}
        got = run(engine, msgspec.structs.replace(turn, drafting=Drafting(strategy=strategy)))
        assert flat(got) == flat(want)
        most = max(most, *map(len, got))
    assert most > 1


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("changes", PROCESSED.values(), ids=PROCESSED.keys())
def test_inside_a_run_of_many_accepted_tokens(engine: Engine, sampling: Sampling, changes: dict[str, Any]) -> None:
    """The text itself is predicted, so that almost all of it is accepted, ten tokens and more a step."""
    turn = turn_of(sampling, changes, end_ids=END_IDS, min_tokens=60)
    want = slow(engine, turn)
    chances = {"drafting": Drafting(strategy="lookahead", window=1, ngram=13, guesses=4, sources=("prediction",))}
    got = run(engine, msgspec.structs.replace(turn, prediction=want, **chances))
    assert flat(got) == want
    assert max(map(len, got)) > 5


@pytest.mark.parametrize("min_tokens", [0, 1, 7, 30, 60])
def test_no_end_token_comes_before_min_tokens(engine: Engine, min_tokens: int) -> None:
    """End tokens are made the likeliest of all: the first that may come does, also within an accepted run."""
    changes = {"logit_bias": dict.fromkeys(END_IDS, 90.0)}
    turn = turn_of(GREEDY, changes, end_ids=END_IDS, min_tokens=min_tokens)
    text = flat(run(engine, msgspec.structs.replace(turn, drafting=Drafting(strategy="autoregressive"))))
    assert text == slow(engine, turn)
    assert len(text) == min(min_tokens + 1, 60)
    assert not set(text[:min_tokens]) & set(END_IDS)
    drafting = Drafting(strategy="lookahead", window=1, ngram=13, guesses=4, sources=("prediction",))
    got = run(engine, msgspec.structs.replace(turn, prediction=text, drafting=drafting))
    assert flat(got) == text
    if min_tokens > 10:
        assert max(map(len, got)) > 5


def test_repetition_counts_what_the_query_sees_and_no_more() -> None:
    """A token far back is free again once it is evicted, a sink never is, and what was just accepted counts at once."""
    ids = array("i", [100, 7, 7, 7, 150, *[7] * 58])  # positions 0..62: the next query is the last that sees 150
    asked = msgspec.structs.replace(GREEDY, repetition_penalty=2.0)
    turn = Turn(session="s", tokens=[7], sampling=asked, max_tokens=40, end_ids=[])
    processor = Processor(turn, Rule(SINKS, CAPACITY, BLOCK), ids)
    logits = torch.ones(259).index_fill(0, torch.tensor([7]), -1.0)

    def halved(accepted: list[int]) -> set[int]:
        row = processor.process(logits, accepted)
        assert row[7] == -2
        assert set(row.tolist()) == {-2.0, 0.5, 1.0}
        return set((row == 0.5).nonzero()[:, 0].tolist())

    assert halved([]) == {100, 150}
    assert halved([200]) == {100, 150, 200}
    ids.append(200)
    assert halved([]) == {100, 150, 200}
    ids.append(201)
    assert halved([]) == {100, 200, 201}
    assert logits[100] == 1  # the row that came in is as it was


def test_a_turn_counts_its_own_tokens_only(engine: Engine) -> None:
    """Of two turns in one session, the second pays for nothing that the first has generated."""
    changes = {"presence_penalty": 2.0, "frequency_penalty": 2.0}
    first = turn_of(GREEDY, changes, max_tokens=10)
    engine.open("s", SINKS)
    ids = list(first.tokens)
    for tokens in (first.tokens, [50, 51]):
        turn = msgspec.structs.replace(first, tokens=tokens)
        engine.start(turn)
        text: list[int] = []
        while engine.has_work:
            for result in engine.step():
                assert isinstance(result, Output), result
                text += result.tokens
        history = ids if tokens is first.tokens else [*ids, *tokens]
        assert text == slow(engine, msgspec.structs.replace(first, tokens=history))
        ids = [*history, *text]
    engine.close("s")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logit_bias": {259: 1.0}}, "logit_bias are between 0 and 258"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias are between 0 and 258"),
        ({"logit_bias": {2**70: 1.0}}, "logit_bias are between 0 and 258"),
        ({"logit_bias": {5: math.nan}}, "logit_bias must be finite"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": math.nan}, "repetition_penalty must be above 0"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(engine: Engine, changes: dict[str, Any], words: str) -> None:
    engine.open("s", SINKS)
    with pytest.raises(ValueError, match=words):
        engine.start(turn_of(GREEDY, changes))
    assert not engine.has_work
    engine.close("s")
    assert run(engine, turn_of(GREEDY, {}))


def test_a_turn_that_asks_for_nothing_has_no_processor(engine: Engine) -> None:
    engine.open("s", SINKS)
    engine.start(turn_of(SAMPLED, {}))
    assert engine._sessions["s"].processor is None
    engine.finish("s", 0)
    engine.start(turn_of(GREEDY, {}, min_tokens=1))
    assert engine._sessions["s"].processor is not None
    engine.close("s")
