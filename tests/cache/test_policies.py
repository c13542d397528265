"""The policies beside sinks, each against its definition. What they share is in test_session_cache.py."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from cache.policy import POLICIES
from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.model import Model
from decoding.step import Slice, Step
from tests import oracle

IDS = random.Random(1).choices(range(3, 259), k=120)
MAX_ROWS = 40


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return Model(tiny_model, torch.device("cpu"), torch.float64)


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)


def new_cache(model: Model, policy: str, rule: Rule) -> SessionCache:
    return POLICIES[policy].new_cache(model.layout, rule, max_rows=MAX_ROWS)


def answer(model: Model, cache: SessionCache, ids: list[int], chunk: int = MAX_ROWS) -> Tensor:
    """Logits of the last of `ids`, after as many steps as it takes."""
    while rows := min(chunk, cache.waiting(len(ids))):
        step = Step([Slice(cache, ids[cache.length : cache.length + rows], 1)], model.device, model.groups)
        logits = model.forward(step)[-1]
        step.commit()
    return logits


def everything(plain: LlamaForCausalLM, ids: list[int]) -> Tensor:
    """Logits of all of a text, nothing evicted."""
    return oracle.logits(plain, ids, sinks=0, capacity=len(ids), block=1)


def test_only_sinks_pins() -> None:
    assert {name: policy.rule(8, 64, 16) for name, policy in POLICIES.items()} == {
        "sinks": Rule(8, 64, 16),
        "window": Rule(0, 64, 16),
        "recompute": Rule(0, 64, 16),
        "dense": Rule(0, 64, 16),
    }


def test_dense_equals_the_dense_oracle_up_to_its_limit_and_refuses_more(model: Model, plain: LlamaForCausalLM) -> None:
    cache = new_cache(model, "dense", Rule(0, 100, 4))
    want = everything(plain, IDS[:100])
    for length in (1, 30, 99, 100):
        torch.testing.assert_close(answer(model, cache, IDS[:length]), want[length - 1], rtol=0, atol=1e-10)
    assert cache.limit == 100
    with pytest.raises(ValueError, match="101 tokens do not fit into a dense cache of 100"):
        answer(model, cache, IDS[:101])
    cache.roll_back(50)
    torch.testing.assert_close(answer(model, cache, IDS[:99]), want[98], rtol=0, atol=1e-10)


def test_window_equals_the_oracle_without_sinks(model: Model, plain: LlamaForCausalLM) -> None:
    want = oracle.logits(plain, IDS, sinks=0, capacity=20, block=3)
    cache = new_cache(model, "window", Rule(0, 20, 3))
    for length in range(1, len(IDS) + 1):
        torch.testing.assert_close(answer(model, cache, IDS[:length]), want[length - 1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("block", [1, 5, 20])
@pytest.mark.parametrize("chunk", [3, MAX_ROWS])
def test_recompute_equals_a_text_that_begins_at_the_window(
    model: Model, plain: LlamaForCausalLM, block: int, chunk: int
) -> None:
    """Token by token, in leaps further than a window, and after roll-backs to before it."""
    cache = new_cache(model, "recompute", Rule(0, 20, block))
    lengths = [*range(1, 60), 100, 101, 119, 120]
    roll_backs = {30: 25, 50: 3, 101: 90}
    for length in lengths:
        begin = oracle.evicted(length - 1, 20, block)
        want = everything(plain, IDS[begin:length])[-1]
        torch.testing.assert_close(answer(model, cache, IDS[:length], chunk), want, rtol=0, atol=1e-10)
        if length in roll_backs:
            other = [*IDS[: length - 2], 5, 6]
            cache.roll_back(min(cache.length, length - 2))
            answer(model, cache, other, chunk)
            cache.roll_back(min(cache.length, roll_backs[length]))


def test_window_and_recompute_differ_from_the_first_eviction_on(model: Model) -> None:
    """The same tokens, but other keys: a window's were computed with what came before it."""
    window, recompute = (new_cache(model, name, Rule(0, 20, 4)) for name in ("window", "recompute"))
    for length in range(1, 40):
        gap = (answer(model, window, IDS[:length]) - answer(model, recompute, IDS[:length])).abs().max()
        assert gap < 1e-10 if length <= 20 else gap > 1e-4
