"""Recycling, the pool, predictions; and how they are asked and trusted."""

import math

from decoding.acceptance import Acceptance
from decoding.drafts import ROOT
from decoding.guesses import Guesses, Guessing
from decoding.pool import Pool
from decoding.prediction import Prediction
from decoding.recycling import WIDTH, Successors
from decoding.strategy import Draft, Limits
from decoding.suffix import Suffixes
from decoding.tally import Tally, credit
from decoding.verify import Verified

LIMITS = Limits(64, 64, 0.0)


def test_recycling_proposes_what_was_likeliest_last() -> None:
    source = Successors(100)
    assert list(source.propose([3, 4])) == []
    source.observe(4, range(10, 10 + WIDTH))
    source.observe(4, range(20, 20 + WIDTH))
    assert list(source.propose([3, 4])) == [(20 + rank, 1 + rank) for rank in range(WIDTH)]
    assert list(source.propose([4, 5])) == []


def test_recycling_with_fewer_tokens_than_it_keeps() -> None:
    source = Successors(3)
    for token in range(3):
        source.observe(token, [2, 0, 1])
    assert [token for token, _ in source.propose([0, 1])] == [2, 0, 1]


def test_the_pool_takes_the_longest_key_and_then_what_was_used_last() -> None:
    pool = Pool()
    pool.add([1, 2, 3, 4])
    pool.add([9, 2, 5, 6])
    assert [token for token, _ in pool.propose([0, 1, 2])] == [3]
    assert [token for token, _ in pool.propose([0, 9, 2])] == [5]
    assert [token for token, _ in pool.propose([0, 8, 2])] == [5, 3]
    pool.add([1, 2, 3, 4])
    assert [token for token, _ in pool.propose([0, 8, 2])] == [3, 5]
    assert [token for token, _ in pool.propose([1, 2, 3])] == [4]
    assert list(pool.propose([7, 8])) == []
    evidence = [said for context in ([0, 8, 2], [0, 1, 2], [1, 2, 3]) for _, said in pool.propose(context)]
    assert all(0 < said < len(Pool.odds) for said in evidence)


def test_a_pool_that_is_full_forgets_what_was_not_used() -> None:
    pool = Pool()
    for token in range(40_000):
        pool.add([token, token + 1])
        list(pool.propose([9, 0]))
    assert [token for token, _ in pool.propose([9, 0])] == [1]
    assert list(pool.propose([9, 100])) == []
    assert len(pool._following) == 2**14


def test_a_prediction_is_found_from_its_beginning_and_again_behind_a_change() -> None:
    source = Prediction([50, 51], [1, 2, 3, 4, 5, 6])
    assert [token for token, _ in source.propose([50, 51])] == [1]
    assert [token for token, _ in source.propose([50, 51, 1, 2])] == [3]
    assert [token for token, _ in source.propose([51, 1, 9, 4, 5])] == [6]


def test_guesses_come_likeliest_first_share_beginnings_and_end_at_end_tokens() -> None:
    successors = Successors(10)
    for token in range(10):
        successors.observe(token, [(token + rank) % 10 for rank in range(1, WIDTH + 1)])
    guesses = Guesses([successors], Acceptance([Successors]), end_ids=[3])
    draft = Draft()
    guesses.grow(draft, [0, 1], Limits(20, 4, 0.0))
    assert len(draft) == 20
    assert draft.chances[1:] == sorted(draft.chances[1:], reverse=True)
    assert draft.tokens[1] == 2
    assert all(draft.tokens[parent] != 3 for parent in draft.parents[1:] if parent != ROOT)
    assert max(draft.depth(node) for node in range(20)) <= 4
    paths = {(draft.parents[node], draft.tokens[node]) for node in range(1, 20)}
    assert len(paths) == 19
    chain = Draft()
    guesses.grow(chain, [0, 1], Limits(20, 9, 0.0, chain=True))
    assert chain.parents[1:] == list(range(len(chain) - 1))
    assert chain.tokens[1:] == [2, 3]
    for depth in (0, 1):
        small = Draft()
        guesses.grow(small, [0, 1], Limits(20, depth, 0.0))
        assert {small.depth(node) for node in range(len(small))} == set(range(depth + 1))


def test_guesses_below_the_floor_are_not_drafted() -> None:
    successors = Successors(10)
    successors.observe(1, range(2, 2 + WIDTH))
    strategy = Guessing(Guesses([successors], Acceptance([Successors]), ()))
    assert len(strategy.draft([0, 1], LIMITS)) == 1 + WIDTH
    assert len(strategy.draft([0, 1], Limits(64, 64, 0.99))) == 1
    assert len(strategy.draft([1], LIMITS)) == 1  # one token is no context


def test_what_is_accepted_becomes_more_trusted_and_is_counted() -> None:
    tally = Tally()
    acceptance = Acceptance([Suffixes, Successors])
    both, one = (5, 1), (0, 2)
    prior = acceptance.chance(both)
    assert math.isclose(prior, 1 / (1 + math.exp(-Suffixes.odds[5] - Successors.odds[1])))
    draft = Draft()
    right = draft.place(ROOT, 7, prior, both)
    wrong = draft.place(ROOT, 8, 0.1, one)
    below = draft.place(right, 9, 0.1, both)
    draft.place(wrong, 9, 0.1, both)  # nothing is learnt of it: what stands before it was wrong
    verified = Verified([7, 9, 4], [ROOT, right, below])
    for _ in range(50):
        acceptance.learn(draft, draft.evidence, verified)
        came = credit(draft, verified, ["suffix", "recycling"])
        assert came is not None
        assert came.sources == ["suffix", "suffix", ""]
        tally.add(came)
    assert acceptance.chance(both) > 0.9 > prior
    assert acceptance.chance(one) < 0.05
    assert tally.drafted == {"suffix": 150, "recycling": 200}
    assert tally.accepted == {"suffix": 100, "recycling": 100}
