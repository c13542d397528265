"""Logarithms of probabilities, and who drafted what: told of the very tokens that plain decoding gives."""

import math
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from decoding.build import build
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.scores import score
from decoding.turn import FLOOR, Drafting, Output, Sampling, Scored, Turn

SAMPLED = Sampling(seed=5, temperature=0.9, repetition_penalty=1.3, logit_bias={40: 5.0})
PROMPTS = [[9], random.Random(3).choices(range(3, 259), k=12) * 4, random.Random(4).choices(range(3, 259), k=300)]
DRAFTINGS = [
    Drafting(strategy="autoregressive"),
    Drafting(),
    Drafting(strategy="jacobi", window=4),
    Drafting(strategy="lookahead", window=4, ngram=3, guesses=4),
]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    return build(EngineOptions(model=str(tiny_model), device="cpu", capacity=512, memory_bytes=2**28, dtype="float32"))


def run(engine: Engine, turns: list[Turn]) -> list[list[Output]]:
    outputs: dict[str, list[Output]] = {turn.session: [] for turn in turns}
    for turn in turns:
        engine.open(turn.session, 4)
        engine.start(turn)
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output), output
            outputs[output.session].append(output)
    for turn in turns:
        engine.close(turn.session)
    return list(outputs.values())


@torch.no_grad()
def truth(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """Of the token behind each: [len(ids), vocabulary]."""
    logprobs: torch.Tensor = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return logprobs


def check(scores: list[Scored], tokens: list[int], logprobs: torch.Tensor, top: int) -> None:
    assert len(scores) == len(tokens) == len(logprobs)
    for scored, token, row in zip(scores, tokens, logprobs, strict=True):
        assert scored.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert len(scored.top) == top
        assert [value for _, value in scored.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-4)
        for likely, value in scored.top:
            assert value == pytest.approx(row[likely].item(), abs=1e-4)


def test_scores_are_those_of_transformers_whatever_is_drafted_alone_and_together(
    engine: Engine, tiny_model: Path
) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_model)
    turns = [
        Turn(
            session=f"{index} {number}",
            tokens=prompt,
            sampling=SAMPLED,
            max_tokens=40,
            end_ids=[],
            drafting=drafting,
            logprobs=number * 2,
            prompt_logprobs=number > 0,
        )
        for index, prompt in enumerate(PROMPTS)
        for number, drafting in enumerate(DRAFTINGS)
    ]
    together = run(engine, turns)
    alone = [run(engine, [turn])[0] for turn in turns]
    for outputs in (together, alone):
        for turn, told in zip(turns, outputs, strict=True):
            tokens = [token for output in told for token in output.tokens]
            logprobs = truth(model, [*turn.tokens, *tokens])
            assert turn.logprobs is not None
            prompt = len(turn.tokens)
            scores = [one for output in told for one in output.scores]
            check(scores, tokens, logprobs[prompt - 1 : -1], turn.logprobs)
            asked = turn.tokens[1:] if turn.prompt_logprobs else []
            check(told[0].prompt_scores, asked, logprobs[: len(asked)], turn.logprobs)
            assert not any(output.prompt_scores for output in told[1:])


def test_a_turn_that_asks_for_none_gets_none_and_the_same_text(engine: Engine) -> None:
    plain = Turn(session="plain", tokens=PROMPTS[1], sampling=SAMPLED, max_tokens=40, end_ids=[])
    asking = Turn(session="asking", tokens=PROMPTS[1], sampling=SAMPLED, max_tokens=40, end_ids=[], logprobs=0)
    plainly, asked = run(engine, [plain, asking])
    assert [token for one in plainly for token in one.tokens] == [token for one in asked for token in one.tokens]
    assert not any(one.scores or one.prompt_scores for one in plainly)
    assert all(len(one.scores) == len(one.tokens) for one in asked)


def test_a_later_turn_tells_of_its_own_tokens(engine: Engine, tiny_model: Path) -> None:
    """The first of them is told by the token before, which was pending."""
    model = LlamaForCausalLM.from_pretrained(tiny_model)
    first = Turn(session="s", tokens=PROMPTS[1], sampling=SAMPLED, max_tokens=5, end_ids=[])
    engine.open("s", 4)
    ids = list(first.tokens)
    for tokens in (first.tokens, [20, 21, 22]):
        engine.start(Turn(session="s", tokens=tokens, sampling=SAMPLED, max_tokens=5, end_ids=[], prompt_logprobs=True))
        told: list[Scored] = []
        ids += tokens if tokens != first.tokens else []
        prompt = len(ids)
        while engine.has_work:
            for output in engine.step():
                assert isinstance(output, Output)
                told += output.prompt_scores
                ids += output.tokens
        asked = tokens[1:] if tokens == first.tokens else tokens
        check(told, asked, truth(model, ids)[prompt - len(asked) - 1 : prompt - 1], 0)
    engine.close("s")


def test_what_was_drafted_and_accepted_is_told_by_source(engine: Engine) -> None:
    engine.tally.drafted.clear()
    engine.tally.accepted.clear()
    turns = [
        Turn(
            session=str(number),
            tokens=PROMPTS[1],
            sampling=Sampling(seed=0, temperature=0),
            max_tokens=60,
            end_ids=[],
            drafting=drafting,
            prediction=PROMPTS[1],
        )
        for number, drafting in enumerate(DRAFTINGS)
    ]
    outputs = run(engine, turns)
    drafted, accepted = Counter[str](), Counter[str]()
    for told in outputs:
        for output in told:
            if output.credit is None:
                assert len(output.tokens) == 1
                continue
            drafted.update(output.credit.drafted)
            accepted.update(output.credit.accepted)
            assert len(output.credit.sources) == len(output.tokens)
            assert output.credit.sources[-1] == ""
            assert all(output.credit.sources[:-1])
            assert set(output.credit.sources[:-1]) <= set(output.credit.accepted)
    assert drafted == engine.tally.drafted
    assert accepted == engine.tally.accepted
    assert {"suffix", "recycling", "prediction", "pool", "window"} == set(drafted)
    assert all(output.credit is None for output in outputs[0])


def test_ties_are_told_by_the_smaller_id_and_what_cannot_be_is_the_floor() -> None:
    logits = torch.zeros(2, 9)
    logits[0, 4] = 1.0
    logits[1, :] = -math.inf
    logits[1, 7] = 0.0
    first, second = score(logits, [8, 2], 3)
    assert [token for token, _ in first.top] == [4, 0, 1]
    assert second.logprob == FLOOR
    assert second.top == [(7, 0.0), (0, FLOOR), (1, FLOOR)]
