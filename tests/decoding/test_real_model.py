"""The default model against transformers' own `generate`, float32, token for token."""

import random
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.build import build
from decoding.drafts import Trie
from decoding.engine import Engine
from decoding.exactness import make_exact
from decoding.model import Model
from decoding.options import EngineOptions
from decoding.step import Slice, Step
from decoding.turn import Drafting, Sampling
from tests import oracle
from tests.driver import GREEDY, generate

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


LOOKAHEAD = Drafting(strategy="lookahead", window=3, ngram=3, guesses=3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_drafts_and_company_change_no_text(
    default_model: Path, prompts: list[list[int]], dtype: Literal["bfloat16", "float32"]
) -> None:
    """Greedy and sampled, alone and at once; bits are kept where this processor's kernels let them."""
    engine = build(EngineOptions(model=str(default_model), dtype=dtype, capacity=128, memory_bytes=2**31))
    if engine.facts.exact == "fast" and dtype == "bfloat16":
        pytest.skip("no kernels here that keep the bits of bfloat16")
    sampling = [GREEDY, Sampling(seed=1, temperature=0.8), Sampling(seed=2, temperature=0.8, top_p=0.9)]
    chosen, length = prompts[:3], 40
    plain = Drafting(strategy="autoregressive")
    want = [generate(engine, [p], length, sampling=s, drafting=plain)[0] for p, s in zip(chosen, sampling, strict=True)]
    for drafting in (Drafting(), LOOKAHEAD, Drafting(strategy="jacobi", window=4)):
        assert generate(engine, chosen, length, sampling=sampling, drafting=drafting) == want
    alone = [generate(engine, [p], length, sampling=s)[0] for p, s in zip(chosen, sampling, strict=True)]
    assert alone == want


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_have_the_same_bits_row_by_row_in_chunks_and_as_drafts(default_model: Path, dtype: torch.dtype) -> None:
    """Across tiles of keys and evictions; wrong drafts behind the right ones, branches and a session beside them."""
    model = Model(default_model, torch.device("cpu"), dtype)
    if (reason := make_exact(model)) is not None:
        assert dtype == torch.bfloat16, reason
        pytest.skip(reason)
    choice = random.Random(0)
    ids = choice.choices(range(100, 40_000), k=170)
    rule = Rule(31, 96, 16)

    def new_cache() -> SessionCache:
        return SessionCache(model.layout, rule, max_rows=64)

    cache = new_cache()
    want = torch.cat([model.extend(cache, [token], 1) for token in ids])
    for size in (50, 64):
        cache = new_cache()
        for first in range(0, len(ids), size):
            chunk = ids[first : first + size]
            assert torch.equal(model.extend(cache, chunk, len(chunk)), want[first : first + size])
    cache, beside = new_cache(), new_cache()
    steps = 0
    while cache.length < len(ids):
        first = cache.length
        right = min(choice.randint(1, 9), cache.reach(), len(ids) - first)
        trie = Trie()
        trie.add([*ids[first + 1 : first + right], *choice.choices(range(100, 40_000), k=choice.randint(0, 4))])
        for _ in range(choice.randint(0, 4)):
            trie.grow(choice.randrange(len(trie)), choice.randrange(100, 40_000))
        slices = [
            Slice(cache, [ids[first], *trie.tokens[1:]], len(trie), trie.ancestors),
            Slice(beside, ids[:5], 1),
        ]
        got = model.forward(Step(slices, model.device, model.groups))
        assert torch.equal(got[:right], want[first : first + right])
        cache.commit(range(right))
        beside.commit(range(5))
        steps += 1
    assert steps < 100


def test_fast_attention_keeps_no_bits(default_model: Path) -> None:
    """Control: the comparison above sees it."""
    model = Model(default_model, torch.device("cpu"), torch.bfloat16)
    ids = random.Random(0).choices(range(100, 40_000), k=40)
    rule = Rule(31, 96, 16)
    caches = [SessionCache(model.layout, rule, max_rows=64) for _ in range(2)]
    want = torch.cat([model.extend(caches[0], [token], 1) for token in ids])
    assert not torch.equal(model.extend(caches[1], ids, 40), want)
