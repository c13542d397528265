"""What steps cost, and what guesses are worth."""

import itertools
import random

import pytest

from decoding.budget import Costs, measure, worth
from decoding.plan import cuts


def flat(rows: int) -> float:
    return 1.0


def dear(rows: int) -> float:
    return float(rows)


def line(rows: int) -> float:
    return 10.0 + rows


def test_what_is_free_is_taken_and_what_costs_a_step_is_not() -> None:
    assert worth([0.9, 0.5, 0.01], 1, flat) == 3
    assert worth([0.009], 1, flat) == 0  # the first must promise a hundredth
    assert worth([0.99, 0.98], 1, dear) == 0
    assert worth([], 1, line) == 0


def test_the_most_tokens_a_second_are_found() -> None:
    random_ = random.Random(0)
    for _ in range(200):
        chances = sorted((random_.random() for _ in range(12)), reverse=True)
        certain = random_.randint(1, 8)
        speeds = [(certain + sum(chances[:count])) / line(certain + count) for count in range(13)]
        count = worth(chances, certain, line)
        assert speeds[count] == max(speeds) or (count == 0 and max(speeds) <= speeds[0] * 1.01)


def test_rows_go_to_the_likeliest_guesses_of_all_sessions() -> None:
    chances = [[0.9, 0.2, 0.1], [0.8, 0.7], []]
    assert cuts(chances, 3, 10, lambda rows: 10.0 + 2 * rows) == [1, 2, 0]
    assert cuts(chances, 3, 2, lambda rows: 1.0) == [1, 1, 0]
    assert cuts(chances, 3, 10, lambda rows: 1.0) == [3, 2, 0]
    assert cuts(chances, 3, 10, dear) == [0, 0, 0]
    assert cuts(chances, 3, 0, lambda rows: 1.0) == [0, 0, 0]


def truth(rows: int, cached: int) -> float:
    return 20.0 + rows + cached * rows / 1000


def test_costs_lie_on_lines_between_what_was_measured() -> None:
    costs = Costs([1, 8, 64], [64, 1024], [[truth(rows, cached) for rows in (1, 8, 64)] for cached in (64, 1024)])
    for rows, cached in itertools.product((1, 3, 8, 40, 64, 100), (64, 500, 1024, 3000)):
        assert costs(rows, cached) == pytest.approx(truth(rows, cached))


def test_costs_follow_the_steps_that_run() -> None:
    costs = Costs([1, 8, 64], [64, 1024], [[10.0, 10.0, 10.0], [10.0, 10.0, 10.0]])
    random_ = random.Random(0)
    for _ in range(4000):
        rows, cached = random_.randint(1, 64), random_.randint(64, 1024)
        seconds = truth(rows, cached) / 8
        costs.observe(rows, cached, 1, seconds * random_.uniform(0.9, 1.1))
    assert costs(4, 300) == pytest.approx(truth(4, 300) / 8, rel=0.1)
    assert costs(50, 900) == pytest.approx(truth(50, 900) / 8, rel=0.1)
    before = costs(16, 500, 5)
    for _ in range(2000):
        costs.observe(16, 500, 5, before + 4 * 0.3)
    assert costs(16, 500, 5) == pytest.approx(before + 4 * 0.3)
    assert costs(16, 500, 3) == pytest.approx(costs(16, 500, 1) + 2 * 0.3, rel=0.1)


def test_each_session_of_a_batch_attends_to_a_cache_of_its_own() -> None:
    seconds = [[10.0 + rows / 100 for rows in (1, 4, 64)], [10.0 + rows / 100 + rows for rows in (1, 4, 64)]]
    costs = Costs([1, 4, 64], [0, 1000], seconds)
    assert costs(8, 1000, 8) == pytest.approx(10.08 + 8 * 1)
    assert costs(16, 1000, 8) == pytest.approx(10.16 + 8 * 2)
    assert costs(8, 500, 2) == pytest.approx(10.08 + 2 * 4 / 2)
    flat = Costs([1, 4, 64], [0, 1000], [[10.0, 10.0, 10.0], [15.0, 15.0, 30.0]])
    assert flat(32, 1000, 8) - flat(8, 1000, 8) == pytest.approx(0)  # four rows attend at the price of one


def test_a_step_that_stalled_teaches_little_and_a_slower_machine_is_learnt() -> None:
    costs = Costs([1, 8], [64, 1024], [[1.0, 2.0], [1.0, 2.0]])
    costs.observe(1, 64, 1, 50.0)
    assert costs(1, 64) == pytest.approx(1.05)
    for _ in range(500):
        costs.observe(1, 64, 1, 50.0)
    assert costs(1, 64) == pytest.approx(50, rel=0.01)
    for _ in range(500):
        costs.observe(1, 64, 1, 0.5)
    assert costs(1, 64) == pytest.approx(0.5, rel=0.01)


def test_noise_makes_no_step_cheaper_than_a_smaller_one_nor_free() -> None:
    costs = Costs([1, 2, 128], [64, 1023], [[0.010, 0.0101, 0.02], [0.0099, 0.01, 0.0199]])
    assert costs(1, 100_000) == pytest.approx(0.010)
    random_ = random.Random(1)
    for _ in range(3000):
        rows, sessions = random_.choice([1, 2, 3, 9, 128]), random_.choice([1, 1, 8])
        costs.observe(max(rows, sessions), random_.randint(1, 4000), sessions, 0.01 * random_.uniform(0.3, 2.5))
    known = [costs(rows, 500) for rows in (1, 2, 5, 64, 128, 500, 2048)]
    assert known == sorted(known)
    assert known[0] > 0.001
    for _ in range(500):
        costs.observe(8, 500, 8, 1e-6)
    assert costs(8, 500, 8) >= costs(8, 64) / 5


def test_measuring_takes_the_best_of_its_rounds() -> None:
    calls: list[tuple[int, int]] = []

    def step(rows: int, cached: int) -> float:
        calls.append((rows, cached))
        disturbed = {1: 9, 3: 7, 5: 5}  # while it warms up, and a stall in either round
        return rows + disturbed.get(len(calls), 0.0)

    costs = measure(step, (1, 2, 8), (8, 16), patience=1e9)
    assert [costs(rows, 8) for rows in (1, 2, 8)] == [1, 2, 8]
    assert [calls.count((rows, cached)) for cached in (8, 16) for rows in (1, 2, 8)] == [3, 2, 2, 3, 2, 2]


def test_no_step_costs_more_than_one_with_more_rows() -> None:
    costs = measure(lambda rows, cached: {1: 9.0, 2: 5.0, 4: 7.0}[rows], (1, 2, 4), (8, 16), patience=1e9)
    assert [costs(rows, 8) for rows in (1, 2, 4)] == [5, 5, 7]


def test_measuring_ends_where_patience_does() -> None:
    calls: list[int] = []

    def step(rows: int, cached: int) -> float:
        calls.append(rows)
        return float(rows)

    costs = measure(step, (1, 2, 4), (8, 16), patience=3.0)
    assert calls == [1, 1, 2, 4, 1, 1, 2, 4]
    assert costs(4, 8) == 4.0
