"""Losses of a text against the oracle's, for each policy."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from cache.policy import POLICIES
from decoding.model import Model
from decoding.perplexity import losses
from tests import oracle

IDS = random.Random(2).choices(range(3, 259), k=90)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return Model(tiny_model, torch.device("cpu"), torch.float64)


def expected(tiny_model: Path, policy: str, capacity: int, block: int) -> Tensor:
    plain = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    if policy == "recompute":
        rows = []
        for t in range(len(IDS) - 1):
            begin = oracle.evicted(t, capacity, block)
            rows.append(oracle.logits(plain, IDS[begin : t + 1], sinks=0, capacity=capacity, block=block)[-1])
        logits = torch.stack(rows)
    else:
        sinks = 4 if policy == "sinks" else 0
        logits = oracle.logits(plain, IDS[:-1], sinks=sinks, capacity=capacity, block=block)
    return -logits.log_softmax(-1)[range(len(IDS) - 1), IDS[1:]]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("block", "chunk"), [(1, 16), (5, 16), (16, 7)])
def test_losses_are_the_oracles_from_the_first_or_from_any_position(
    tiny_model: Path, model: Model, policy: str, block: int, chunk: int
) -> None:
    capacity = 90 if policy == "dense" else 24
    want = expected(tiny_model, policy, capacity, block)
    rule = POLICIES[policy].rule(4, capacity, block)
    for first in (0, 37, 88):
        got = [loss for piece in losses(model, POLICIES[policy], rule, IDS, first=first, chunk=chunk) for loss in piece]
        torch.testing.assert_close(torch.tensor(got, dtype=torch.float64), want[first:], rtol=0, atol=1e-10)
