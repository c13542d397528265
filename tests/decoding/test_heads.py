"""Pinned blocks that are known are not forwarded again."""

import random
from pathlib import Path

import pytest

from decoding.engine import Engine
from tests.driver import generate
from tests.talk import engine_for, octets, text_of, turn_of

HEAD = random.Random(4).choices(range(3, 97), k=12)


@pytest.fixture
def engine(tiny_model: Path) -> Engine:
    return engine_for(tiny_model)


@pytest.mark.parametrize("policy", ["sinks", "window", "recompute", "dense"])
def test_a_known_pinned_block_is_not_forwarded_again(tiny_model: Path, policy: str) -> None:
    engine = engine_for(tiny_model, policy=policy, capacity=96 if policy == "dense" else 48)
    first = [*HEAD, *text_of(30)]
    want = generate(engine_for(tiny_model, policy=policy, capacity=engine.facts.capacity), [first], 30, sinks=12)[0]
    engine.open("a", 12)
    assert engine.start(turn_of("a", first, 30)) == 0
    while engine.has_work:
        engine.step()
    engine.open("b", 12)
    assert engine.start(turn_of("b", first, 30)) == 12
    assert engine._sessions["b"].num_waiting() == 30
    while engine.has_work:
        engine.step()
    assert engine._sessions["a"].ids.tolist() == engine._sessions["b"].ids.tolist() == first + want
    assert engine.open("c", 12, octets([*HEAD, 5])) == 12
    for name, sinks, ids in (("d", 11, first), ("e", 12, first[1:]), ("f", 12, HEAD[:11])):
        engine.open(name, sinks)
        assert engine.start(turn_of(name, ids)) == 0
    engine.open("g", 12, namespace="another key's")
    assert engine.start(turn_of("g", first)) == 0


def test_a_turn_that_is_the_pinned_block_alone_forwards_it(engine: Engine) -> None:
    """Its last token decides the next one."""
    ids = text_of(12, seed=11)
    texts = []
    for name in "ab":
        engine.open(name, 12)
        assert engine.start(turn_of(name, ids)) == 0
        while engine.has_work:
            engine.step()
        texts.append(engine._sessions[name].ids.tolist())
    assert texts[0] == texts[1]


def test_pinned_blocks_are_bounded_and_those_used_last_stay(tiny_model: Path) -> None:
    engine = engine_for(tiny_model, head_bytes=3 * 12 * 512)
    heads = [text_of(12, seed) for seed in range(4)]

    def cached(head: list[int]) -> int:
        engine.open("s", 12)
        count = engine.start(turn_of("s", [*head, 5], 1))
        while engine.has_work:
            engine.step()
        engine.close("s")
        return count

    assert [cached(heads[index]) for index in (0, 1, 2, 0, 3, 0, 2, 1)] == [0, 0, 0, 12, 0, 12, 12, 0]
    assert engine_for(tiny_model, head_bytes=0)._sessions._heads.bytes == 0
