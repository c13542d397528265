"""The default model against transformers' own `generate`, float32, token for token."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.build import build
from decoding.engine import Engine
from decoding.model import Model
from decoding.options import EngineOptions
from decoding.step import Slice, Step
from decoding.turn import Sampling
from tests import oracle
from tests.driver import generate

pytestmark = pytest.mark.model

QUESTIONS = [
    "Explain to a child why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five fruits and their colours.",
    "What is the capital of Portugal, and which river does it lie on?",
    "Summarise in one sentence: The ship left at dawn. A storm broke its mast. It came home a week late.",
    "Translate into French: Where is the railway station?",
    "Tell a short story about a lighthouse keeper who finds a bottle.",
    "A train goes 60 km in 45 minutes. How fast is it?",
    "Give me a recipe for tomato soup.",
    "Who wrote War and Peace, and what is it about?",
]


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Engine:
    return build(EngineOptions(model=str(default_model), device="cpu", dtype="float32", memory_bytes=2**32))


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> list[list[int]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(default_model)
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)["input_ids"]
        for question in QUESTIONS
    ]


@pytest.fixture(scope="module")
def plain(default_model: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(default_model, dtype=torch.float32)


def test_greedy_text_equals_generate_alone_and_eight_at_once(
    engine: Engine, prompts: list[list[int]], plain: LlamaForCausalLM
) -> None:
    want = []
    for prompt in prompts:
        out = plain.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=64,
            do_sample=False,
        )
        want.append(out[0, len(prompt) :].tolist())
    assert [generate(engine, [prompt], 64, end_ids=[2])[0] for prompt in prompts] == want
    assert generate(engine, prompts[:8], 64, end_ids=[2]) == want[:8]


def test_sampled_text_is_the_same_alone_in_a_batch_and_in_any_chunks(
    default_model: Path, prompts: list[list[int]], engine: Engine
) -> None:
    sampling = [Sampling(seed=seed, temperature=0.8, top_p=0.95) for seed in range(8)]
    alone = [generate(engine, [p], 32, sampling=[s])[0] for p, s in zip(prompts[:8], sampling, strict=True)]
    assert generate(engine, prompts[:8], 32, sampling=sampling) == alone
    for max_rows in (7, 64, 1000):
        options = EngineOptions(model=str(default_model), dtype="float32", max_rows=max_rows, memory_bytes=2**32)
        assert generate(build(options), prompts[:8], 32, sampling=sampling) == alone


def test_a_text_three_times_the_capacity_equals_the_oracle(
    default_model: Path, prompts: list[list[int]], plain: LlamaForCausalLM
) -> None:
    """Greedy, system prompt pinned: each token is the argmax of a dense forward that knows only the definition."""
    capacity, block, sinks = 160, 16, 31
    options = EngineOptions(
        model=str(default_model), dtype="float32", capacity=capacity, block=block, memory_bytes=2**30
    )
    prompt = prompts[6]
    text = generate(build(options), [prompt], 3 * capacity, sinks=sinks)[0]
    ids = prompt + text
    assert len(ids) > 3 * capacity
    logits = oracle.logits(plain, ids[:-1], sinks=sinks, capacity=capacity, block=block, first=len(prompt) - 1)
    assert logits.argmax(-1).tolist() == text


def test_bfloat16_rows_have_the_same_bits_alone_and_in_a_batch(default_model: Path, prompts: list[list[int]]) -> None:
    """Logits, not only text: packed layers, norms and attention give a row its bits whatever stands beside it."""
    device = torch.device("cpu")
    model = Model(default_model, device, torch.bfloat16)
    if not model.packed:
        pytest.skip("no fast bfloat16 kernels on this processor: plain layers promise no bits")
    rule = Rule(31, 96, 16)
    lengths = [len(prompt) + 60 for prompt in prompts]  # past the capacity
    stream = [(prompt * 9)[:length] for prompt, length in zip(prompts, lengths, strict=True)]

    def forward(caches: list[SessionCache], parts: list[list[int]]) -> torch.Tensor:
        step = Step([Slice(c, p, 1) for c, p in zip(caches, parts, strict=True)], device, model.groups)
        logits = model.forward(step)
        step.commit()
        return logits

    def new_caches() -> list[SessionCache]:
        return [SessionCache(model.layout, rule, max_rows=128) for _ in prompts]

    alone, together = new_caches(), new_caches()
    want = torch.cat([forward([cache], [prompt]) for cache, prompt in zip(alone, prompts, strict=True)])
    assert torch.equal(forward(together, prompts), want)
    for t in range(60):
        tokens = [[ids[len(prompt) + t]] for ids, prompt in zip(stream, prompts, strict=True)]
        want = torch.cat([forward([cache], [token]) for cache, token in zip(alone, tokens, strict=True)])
        assert torch.equal(forward(together, tokens), want)
