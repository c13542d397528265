"""The soak's random requests: the good ones are good, the wrong ones are wrong, and a seed gives the same again."""

import json
import random

import pytest

from benchmarks.traffic import KINDS, MALFORMED, WRONG, Traffic
from server.body import parse
from server.errors import ApiError
from server.schemas import ChatRequest


def traffic(seed: int) -> Traffic:
    return Traffic(random.Random(seed), "soak", max_tokens=100, max_text=2000)


def test_good_bodies_are_good_and_say_all_that_an_answer_depends_on() -> None:
    asked, kinds = traffic(0), set()
    for _ in range(300):
        kind, body = asked.good()
        kinds.add(kind)
        request = parse(json.dumps(body).encode(), ChatRequest)
        assert request.temperature == 0 or request.seed is not None
        assert 1 <= (request.max_tokens or 0) <= 100
    assert kinds == set(KINDS)


def test_a_seed_gives_the_same_bodies() -> None:
    first, second = traffic(5), traffic(5)
    assert [first.good() for _ in range(20)] == [second.good() for _ in range(20)]
    assert [first.bad() for _ in range(20)] == [second.bad() for _ in range(20)]


@pytest.mark.parametrize("raw", MALFORMED[:-2])
def test_malformed_bodies_are_refused(raw: bytes) -> None:
    """The last two are refused for what the server serves: another model, and a pinned block that is too long."""
    with pytest.raises(ApiError):
        parse(raw, ChatRequest)


def test_wrong_values_are_refused() -> None:
    _, body = traffic(1).good()
    left_to_the_server = {"min_tokens", "lookahead", "max_tokens", "logit_bias"}  # which knows the limits of the model
    for name, value in WRONG:
        try:
            parse(json.dumps(body | {name: value}).encode(), ChatRequest)
        except ApiError:
            continue
        assert name in left_to_the_server
