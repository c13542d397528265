"""The choice among answers, against one forward for each of them."""

import random
from pathlib import Path

import pytest
import torch

from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.model import Model
from decoding.recall import most_likely, read
from tests import oracle

RULE = Rule(4, 20, 5)
RNG = random.Random(4)
TEXT = RNG.choices(range(3, 259), k=70)
QUESTION = RNG.choices(range(3, 259), k=6)


@pytest.mark.parametrize("length", [1, 4])
def test_the_likeliest_answer_is_chosen_and_the_session_stays_as_it_was(tiny_model: Path, length: int) -> None:
    from transformers import LlamaForCausalLM

    model = Model(tiny_model, torch.device("cpu"), torch.float64)
    plain = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    cache = SessionCache(model.layout, RULE, max_rows=9)
    read(model, cache, TEXT[:60], chunk=9)
    chosen = set()
    for seed in range(8):
        answers = [random.Random(f"{seed} {n}").choices(range(3, 259), k=length) for n in range(5)]
        scores = []
        for answer in answers:
            ids = [*TEXT[:60], *QUESTION, *answer]
            logits = oracle.logits(plain, ids, sinks=4, capacity=20, block=5).log_softmax(-1)
            scores.append(sum(float(logits[t - 1, ids[t]]) for t in range(66, len(ids))))
        got = most_likely(model, cache, QUESTION, answers, chunk=4)
        assert got == scores.index(max(scores))
        chosen.add(got)
    assert len(chosen) > 1
    assert cache.length == 60
    want = oracle.logits(plain, TEXT, sinks=4, capacity=20, block=5)
    torch.testing.assert_close(model.extend(cache, TEXT[60:69], 9), want[60:69], rtol=0, atol=1e-10)
