"""The engine on a tiny model, in float32: alone, in company, in turns, and after errors."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaForCausalLM

from cache.session_cache import SessionCache
from decoding.build import build
from decoding.engine import Engine
from decoding.errors import ModelRefusedError, NoPlaceError
from decoding.options import EngineOptions
from decoding.step import Step
from decoding.turn import Fault, Output, Sampling, Turn
from tests import families, oracle
from tests.driver import GREEDY, generate, run

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
PROMPTS = [
    random.Random(seed).choices(range(3, 259), k=length) for seed, length in enumerate([1, 2, 9, 30, 64, 65, 150])
]
SAMPLED = [Sampling(seed=seed, temperature=0.9, top_p=0.95) for seed in range(len(PROMPTS))]


def engine_for(model: Path, device: str = "cpu", **options: Any) -> Engine:
    changes: dict[str, Any] = {"capacity": 64, "block": 8, "max_rows": 48, "memory_bytes": 2**28} | options
    return build(EngineOptions(model=str(model), device=device, dtype="float32", **changes))


def step(engine: Engine) -> list[Output]:
    """A step in which no session fails."""
    outputs = []
    for result in engine.step():
        assert isinstance(result, Output), result
        outputs.append(result)
    return outputs


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


@pytest.fixture(params=["cpu", CUDA])
def engine(request: pytest.FixtureRequest, tiny_model: Path) -> Engine:
    return engine_for(tiny_model, request.param)


@pytest.mark.parametrize("sampling", [[GREEDY] * len(PROMPTS), SAMPLED], ids=["greedy", "sampled"])
def test_alone_in_a_batch_and_in_any_chunks_the_text_is_the_same(
    engine: Engine, tiny_model: Path, sampling: list[Sampling]
) -> None:
    """Generates 100 tokens from each prompt, so that all of them evict."""
    want = [generate(engine, [p], 100, sampling=[s])[0] for p, s in zip(PROMPTS, sampling, strict=True)]
    assert generate(engine, PROMPTS, 100, sampling=sampling) == want
    for max_rows in (1, 7, 64, 1000):
        other = engine_for(tiny_model, engine.facts.device, max_rows=max_rows)
        assert generate(other, PROMPTS, 100, sampling=sampling) == want


def test_different_seeds_give_different_texts(engine: Engine) -> None:
    texts = generate(engine, [PROMPTS[3]] * 4, 30, sampling=[Sampling(seed=seed) for seed in (1, 2, 3, 1)])
    assert texts[0] == texts[3]
    assert len({tuple(text) for text in texts}) == 3


def test_turns_continue_one_stream(engine: Engine) -> None:
    """Three turns equal one forward of the same ids: nothing is forwarded twice, the pending token exactly once."""
    ids: list[int] = []
    engine.open("chat", 4)
    for index, prompt in enumerate(PROMPTS[2:5]):
        turn = Turn(session="chat", tokens=prompt, sampling=GREEDY, max_tokens=20 + index, end_ids=[])
        ids += [*prompt, *run(engine, {"chat": turn})["chat"]]
    last = Turn(session="chat", tokens=PROMPTS[1], sampling=GREEDY, max_tokens=30, end_ids=[])
    assert run(engine, {"chat": last})["chat"] == generate(engine, [ids + PROMPTS[1]], 30)[0]


def test_an_output_says_where_it_stands_and_why_it_ended(engine: Engine) -> None:
    text = generate(engine, [PROMPTS[2]], 12)[0]
    engine.open("s", 4)
    engine.start(Turn(session="s", tokens=PROMPTS[2], sampling=GREEDY, max_tokens=12, end_ids=[text[4]]))
    outputs = []
    while engine.has_work:
        outputs += step(engine)
    stop = text.index(text[4]) + 1
    assert [token for output in outputs for token in output.tokens] == text[:stop]
    assert [output.length for output in outputs] == [len(PROMPTS[2]) + n + 1 for n in range(stop)]
    assert [output.finish for output in outputs] == [None] * (stop - 1) + ["stop"]
    engine.start(Turn(session="s", tokens=[5], sampling=GREEDY, max_tokens=1, end_ids=[]))
    assert step(engine)[0].finish == "length"


@pytest.mark.parametrize("keep_back", [0, 1, 7, 60, 170])
def test_finish_rolls_back_as_if_the_rest_had_never_been(engine: Engine, keep_back: int) -> None:
    """Also further than the cache can undo: then the ids that stay are forwarded anew."""
    engine.open("s", 4)
    engine.start(Turn(session="s", tokens=PROMPTS[6], sampling=GREEDY, max_tokens=1000, end_ids=[]))
    text: list[int] = []
    while len(text) < 50:
        text += tokens_of(step(engine))
    ids = PROMPTS[6] + text
    keep = len(ids) - keep_back
    assert engine.finish("s", keep) == keep
    assert not engine.has_work
    again = Turn(session="s", tokens=PROMPTS[2], sampling=GREEDY, max_tokens=30, end_ids=[])
    assert run(engine, {"s": again})["s"] == generate(engine, [ids[:keep] + PROMPTS[2]], 30)[0]


def test_finish_in_the_middle_of_a_prompt(engine: Engine) -> None:
    engine.open("s", 4)
    engine.start(Turn(session="s", tokens=PROMPTS[6], sampling=GREEDY, max_tokens=9, end_ids=[]))
    assert engine.step() == []  # 48 of 150 rows
    assert engine.finish("s", 0) == 0
    turn = Turn(session="s", tokens=PROMPTS[5], sampling=GREEDY, max_tokens=9, end_ids=[])
    assert run(engine, {"s": turn})["s"] == generate(engine, [PROMPTS[5]], 9)[0]


def test_places_are_bounded_and_come_back(tiny_model: Path) -> None:
    one = engine_for(tiny_model).facts.session_bytes
    engine = engine_for(tiny_model, memory_bytes=3 * one)
    assert engine.facts.max_sessions == 3
    for name in "abc":
        engine.open(name, 4)
    with pytest.raises(NoPlaceError, match="all 3 places"):
        engine.open("d", 4)
    engine.close("b")
    engine.open("d", 4)


def test_memory_for_no_session_at_all_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ModelRefusedError, match="and 1000 are there"):
        engine_for(tiny_model, memory_bytes=1000)


def test_what_cannot_be_is_refused_and_changes_nothing(engine: Engine) -> None:
    engine.open("s", 4)
    with pytest.raises(ValueError, match="open already"):
        engine.open("s", 4)
    with pytest.raises(ValueError, match="block must be between"):
        engine.open("t", 60)
    for tokens, max_tokens in (([], 5), ([5], 0)):
        with pytest.raises(ValueError, match="at least one token"):
            engine.start(Turn(session="s", tokens=tokens, sampling=GREEDY, max_tokens=max_tokens, end_ids=[]))
    engine.start(Turn(session="s", tokens=[5], sampling=GREEDY, max_tokens=3, end_ids=[]))
    with pytest.raises(ValueError, match="runs a turn already"):
        engine.start(Turn(session="s", tokens=[5], sampling=GREEDY, max_tokens=3, end_ids=[]))
    engine.finish("s", 0)
    engine.close("s")
    assert generate(engine, [PROMPTS[3]], 5) == generate(engine, [PROMPTS[3]], 5)


@pytest.mark.parametrize("count", range(4, 12))
def test_after_an_error_in_a_step_the_sessions_go_on(
    engine: Engine, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes in the second layer, when the first one has moved its sinks (for one of a block's lengths): the
    cache is in doubt.
    """
    engine.open("s", 4)
    engine.start(Turn(session="s", tokens=PROMPTS[6], sampling=GREEDY, max_tokens=1000, end_ids=[]))
    text: list[int] = []
    while len(text) < count:
        text += tokens_of(step(engine))

    attend = SessionCache.attend

    def fail(self: SessionCache, layer: int, *rest: Any) -> torch.Tensor:
        if layer == 1:
            raise RuntimeError("out of memory")
        return attend(self, layer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(SessionCache, "attend", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.step()
    assert not engine.has_work
    turn = Turn(session="s", tokens=[7], sampling=GREEDY, max_tokens=20, end_ids=[])
    assert run(engine, {"s": turn})["s"] == generate(engine, [[*PROMPTS[6], *text, 7]], 20)[0]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=1, top_p=0.9)], ids=["greedy", "sampled"])
def test_logits_that_are_no_numbers_end_that_turn_alone(
    engine: Engine, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In company of another, whose text is what it would have been; and the session can go on."""
    want = generate(engine, [PROMPTS[2]], 5)[0]
    for name in ("good", "bad"):
        engine.open(name, 4)
        engine.start(Turn(session=name, tokens=PROMPTS[2], sampling=sampling, max_tokens=5, end_ids=[]))
    forward = engine._model.forward

    def broken(rows: Step) -> torch.Tensor:
        logits = forward(rows).clone()
        logits[1, 100] = float("nan")
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(engine._model, "forward", broken)
        good, bad = engine.step()
    assert isinstance(good, Output)
    assert bad == Fault(session="bad", reason="ArithmeticError: the model's logits are no numbers")
    assert engine.running == {"good"}
    text = [*good.tokens]
    while engine.has_work:
        text += tokens_of(step(engine))
    assert len(text) == 5
    if sampling is GREEDY:
        assert text == want
    engine.finish("bad", 0)
    turn = Turn(session="bad", tokens=PROMPTS[2], sampling=GREEDY, max_tokens=5, end_ids=[])
    assert run(engine, {"bad": turn})["bad"] == want


@pytest.mark.parametrize("token", [-1, 259, 2**31, 2**70])
def test_an_id_that_no_token_has_is_refused_and_leaves_nothing_behind(engine: Engine, token: int) -> None:
    want = generate(engine, [[5, 6]], 5)[0]
    engine.open("s", 4)
    with pytest.raises(ValueError, match="token ids are between 0 and 258"):
        engine.start(Turn(session="s", tokens=[5, token], sampling=GREEDY, max_tokens=5, end_ids=[]))
    turn = Turn(session="s", tokens=[5, 6], sampling=GREEDY, max_tokens=5, end_ids=[])
    assert run(engine, {"s": turn})["s"] == want


def test_more_sessions_than_rows_are_served_in_turn(tiny_model: Path) -> None:
    prompts = PROMPTS[1:5] * 3
    want = generate(engine_for(tiny_model), prompts, 20)
    assert generate(engine_for(tiny_model, max_rows=5), prompts, 20) == want


@pytest.mark.parametrize("policy", ["window", "recompute", "dense"])
@pytest.mark.parametrize("sampling", [[GREEDY] * len(PROMPTS), SAMPLED], ids=["greedy", "sampled"])
def test_with_every_policy_the_text_does_not_depend_on_company(
    tiny_model: Path, policy: str, sampling: list[Sampling]
) -> None:
    capacity = 256 if policy == "dense" else 64
    engine = engine_for(tiny_model, policy=policy, capacity=capacity)
    want = [generate(engine, [p], 100, sampling=[s])[0] for p, s in zip(PROMPTS, sampling, strict=True)]
    assert generate(engine, PROMPTS, 100, sampling=sampling) == want
    other = engine_for(tiny_model, policy=policy, capacity=capacity, max_rows=7)
    assert generate(other, PROMPTS, 100, sampling=sampling) == want


def test_recompute_is_plain_decoding_over_the_window(tiny_model: Path) -> None:
    plain = LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    ids = list(PROMPTS[3])
    for _ in range(100):
        begin = oracle.evicted(len(ids) - 1, 64, 8)
        with torch.no_grad():
            ids.append(int(plain(torch.tensor([ids[begin:]])).logits[0, -1].argmax()))
    assert generate(engine_for(tiny_model, policy="recompute"), [PROMPTS[3]], 100)[0] == ids[len(PROMPTS[3]) :]


def test_dense_ends_where_it_is_full_and_refuses_what_does_not_fit(tiny_model: Path) -> None:
    engine = engine_for(tiny_model, policy="dense")
    assert engine.facts.max_length == 64
    assert engine.facts.max_sinks == 0
    engine.open("s", 0)
    with pytest.raises(ValueError, match="65 tokens do not fit into a cache of 64"):
        engine.start(Turn(session="s", tokens=[5] * 65, sampling=GREEDY, max_tokens=1, end_ids=[]))
    turn = Turn(session="s", tokens=PROMPTS[3], sampling=GREEDY, max_tokens=100, end_ids=[])
    text = run(engine, {"s": turn})["s"]
    assert len(text) == 64 - 30 + 1  # the last one is never forwarded
    assert text == generate(engine_for(tiny_model, policy="dense", capacity=256), [PROMPTS[3]], 35)[0]
    with pytest.raises(ValueError, match="66 tokens do not fit"):
        engine.start(Turn(session="s", tokens=[5], sampling=GREEDY, max_tokens=1, end_ids=[]))


def test_a_capacity_past_the_trained_context_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ModelRefusedError, match="capacity 200000 is more than the 131072 tokens"):
        engine_for(tiny_model, capacity=200_000)


def test_slabs_stay_where_they_are_in_a_long_conversation(engine: Engine) -> None:
    engine.open("s", 4)
    engine.start(Turn(session="s", tokens=PROMPTS[3], sampling=GREEDY, max_tokens=2000, end_ids=[]))
    engine.step()
    tensors = engine._sessions["s"].cache.tensors
    before = [tensor.data_ptr() for tensor in tensors()]
    while engine.has_work:
        engine.step()
    assert [tensor.data_ptr() for tensor in tensors()] == before


def test_a_model_that_is_not_proven_is_refused_with_the_reason(tmp_path: Path) -> None:
    from transformers import GPT2Config

    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(ModelRefusedError, match="'gpt2' cannot be served: it learned absolute positions"):
        build(EngineOptions(model=str(tmp_path)))


def test_a_capacity_past_where_frequencies_are_frozen_is_refused(tmp_path: Path) -> None:
    """LongRoPE has other ones for longer texts; a text whose queries see no more than 2,048 keys never needs them."""
    families.build(families.FAMILIES["llama, longrope"].config).save_pretrained(tmp_path)
    build(EngineOptions(model=str(tmp_path), capacity=2048))
    with pytest.raises(ModelRefusedError, match="capacity 2049 is more than the 2048 tokens"):
        build(EngineOptions(model=str(tmp_path), capacity=2049))


def test_a_type_that_is_not_proven_is_served_where_it_is_trusted_and_passes(tmp_path: Path) -> None:
    config = AutoConfig.for_model("olmo", **families.SIZES, num_key_value_heads=2)
    families.build(config).save_pretrained(tmp_path)
    with pytest.raises(ModelRefusedError, match="'olmo' is not proven here"):
        build(EngineOptions(model=str(tmp_path)))
    engine = build(EngineOptions(model=str(tmp_path), trust_model=True))
    assert engine.facts.layers == "3, 2 key and value heads each: 3 follow the policy"


def test_a_model_with_missing_weights_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """transformers fills them with random numbers and goes on."""
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelRefusedError, match=r"1 weights are missing in .*layers\.1\.mlp\.up_proj"):
        build(EngineOptions(model=str(tmp_path)))


def test_end_tokens_come_from_the_config_where_the_generation_config_names_none(
    tiny_model: Path, tmp_path: Path
) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text("{}")
    assert engine_for(tmp_path).facts.end_ids == [2]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert engine_for(tmp_path).facts.end_ids == [7, 9]


def test_a_device_that_is_not_there_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ModelRefusedError, match="'cuda:99' is not usable"):
        build(EngineOptions(model=str(tiny_model), device="cuda:99"))


def test_facts_are_resolved(engine: Engine) -> None:
    facts = engine.facts
    assert facts.end_ids == [2]
    assert facts.max_sinks == 32
    assert facts.dtype == "float32"
    assert facts.max_sessions == 2**28 // facts.session_bytes
    assert build(EngineOptions(model=facts.model, device=facts.device, capacity=64, block=8)).facts.dtype in (
        "bfloat16",
        "float16",
        "float32",
    )
