"""Every kind of model that is served: against transformers while all fits, and against the oracle past the capacity."""

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from cache.policy import POLICIES
from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.model import Model
from decoding.served import SERVED_ROPES, SERVED_TYPES
from decoding.step import Slice, Step
from tests import oracle
from tests.families import FAMILIES, VOCAB, build
from tests.shift import shift
from tests.wide import Wide

IDS = random.Random(3).choices(range(3, VOCAB), k=100)
MAX_ROWS = 24
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    build(FAMILIES[name].config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(folder: Path) -> PreTrainedModel:
    with Wide():
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        )
    model.eval()
    return model


def load(folder: Path, dtype: torch.dtype = torch.float64, **how: Any) -> Model:
    with Wide() if dtype == torch.float64 else nullcontext():
        return Model(folder, torch.device("cpu"), dtype, **how)


def feed(model: Model, cache: SessionCache, chunks: list[int], ids: list[int] = IDS) -> Tensor:
    """Logits of ids[cache.length:], in chunks of these sizes, over and over."""
    out, turn = [], 0
    while cache.length < len(ids):
        tokens = ids[cache.length : cache.length + chunks[turn % len(chunks)]]
        step = Step([Slice(cache, tokens, len(tokens))], model.device, model.groups)
        out.append(model.forward(step))
        step.commit()
        turn += 1
    return torch.cat(out)


def truth(plain: PreTrainedModel, name: str, rule: Rule, ids: list[int] = IDS) -> Tensor:
    family = FAMILIES[name]
    return oracle.logits(
        plain,
        ids,
        sinks=rule.sinks,
        capacity=rule.capacity,
        block=rule.block,
        turns=family.turns(plain),
        interleaved=family.interleaved,
    )


def test_the_table_of_served_models_is_what_is_proven() -> None:
    assert {family.config.model_type for family in FAMILIES.values()} == set(SERVED_TYPES)
    kinds = set()
    for family in FAMILIES.values():
        ropes = getattr(family.config, "rope_parameters", None) or {}
        for rope in (ropes, *ropes.values()):
            if isinstance(rope, dict) and "rope_type" in rope:
                kinds.add(rope["rope_type"])
    assert kinds == set(SERVED_ROPES)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_transformers_while_everything_fits(
    folder: Path, plain: PreTrainedModel, name: str, dtype: torch.dtype
) -> None:
    """And so does the oracle: its tables of rotations and windows are right."""
    with torch.no_grad(), Wide():
        want = plain(torch.tensor([IDS])).logits[0]
    rule = Rule(4, len(IDS), 8)
    torch.testing.assert_close(truth(plain, name, rule), want, rtol=0, atol=1e-10)
    for fast in (True, False):
        model = load(folder, dtype, packed=fast, fused=fast)
        cache = SessionCache(model.layout, rule, max_rows=MAX_ROWS)
        got = _in(dtype, model, cache, [MAX_ROWS, 1, 7])
        torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("policy", ["sinks", "window", "dense"])
def test_equals_the_oracle(folder: Path, plain: PreTrainedModel, name: str, policy: str, dtype: torch.dtype) -> None:
    model = load(folder, dtype)
    capacity = len(IDS) if policy == "dense" else 20
    for block in (1, 5):
        rule = POLICIES[policy].rule(4, capacity, block)
        want = truth(plain, name, rule)
        for chunks in ([1], [MAX_ROWS], [7, 1, 13]) if dtype == torch.float64 else ([7, 1, 13],):
            cache = POLICIES[policy].new_cache(model.layout, rule, max_rows=MAX_ROWS)
            got = _in(dtype, model, cache, chunks)
            torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCES[dtype])


def test_recompute_equals_a_text_of_its_own(folder: Path, plain: PreTrainedModel, name: str) -> None:
    model = load(folder)
    rule = Rule(0, 20, 5)
    cache = POLICIES["recompute"].new_cache(model.layout, rule, max_rows=MAX_ROWS)
    for length in (5, 20, 21, 26, 27, 60, 58, 99):
        cache.roll_back(min(cache.length, length - 1))
        with Wide():
            while rows := min(7, cache.waiting(length)):
                step = Step([Slice(cache, IDS[cache.length : cache.length + rows], 1)], model.device, model.groups)
                logits = model.forward(step)[-1]
                step.commit()
        begin = oracle.evicted(length - 1, 20, 5)
        want = truth(plain, name, Rule(0, 100, 1), IDS[begin:length])[-1]
        torch.testing.assert_close(logits, want, rtol=0, atol=1e-10)


def test_rolling_back_equals_never_having_seen_the_rest(folder: Path, plain: PreTrainedModel, name: str) -> None:
    model = load(folder)
    rule = Rule(4, 20, 5)
    want = truth(plain, name, rule)
    for length, back in ((30, 3), (60, 20), (95, 11), (19, 19)):
        cache = SessionCache(model.layout, rule, max_rows=MAX_ROWS)
        _in(torch.float64, model, cache, [MAX_ROWS], [*IDS[: length - back], *IDS[:back]])
        cache.roll_back(length - back)
        got = _in(torch.float64, model, cache, [9])
        torch.testing.assert_close(got, want[length - back :], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-6), (torch.float32, 1e-4)], ids=str)
def test_a_session_of_millions_of_tokens_has_the_logits_of_a_young_one(
    folder: Path, dtype: torch.dtype, atol: float
) -> None:
    """Up to 2^24 + 1, past what float32 counts. So the angles of every kind of rotary module are exact."""
    model = load(folder, dtype)
    rule = Rule(4, 20, 5)
    want = _in(dtype, model, SessionCache(model.layout, rule, max_rows=MAX_ROWS), [7])[20:]
    cache = SessionCache(model.layout, rule, max_rows=MAX_ROWS)
    _in(dtype, model, cache, [7], IDS[:20])
    by = 2**24 + 1 - (2**24 + 1) % rule.block
    shift(cache, by)
    out = []
    while (done := cache.length - by) < len(IDS):
        tokens = IDS[done : done + 7]
        with Wide() if dtype == torch.float64 else nullcontext():
            step = Step([Slice(cache, tokens, len(tokens))], model.device, model.groups)
            out.append(model.forward(step))
        step.commit()
    torch.testing.assert_close(torch.cat(out), want, rtol=0, atol=atol)


def test_memory_is_what_is_announced(folder: Path, name: str) -> None:
    model = load(folder, torch.float32)
    for policy in POLICIES.values():
        rule = policy.rule(4, 20, 5)
        cache = policy.new_cache(model.layout, rule, max_rows=MAX_ROWS)
        announced = policy.cache.bytes(model.layout, rule, max_rows=MAX_ROWS)
        assert sum(tensor.numel() * tensor.element_size() for tensor in cache.tensors()) == announced


def _in(dtype: torch.dtype, model: Model, cache: SessionCache, chunks: list[int], ids: list[int] = IDS) -> Tensor:
    if dtype == torch.float64:
        with Wide():
            return feed(model, cache, chunks, ids)
    return feed(model, cache, chunks, ids)
