"""All ways to compute the blocks of a model, against transformers' own; and models that are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.errors import ModelRefusedError
from decoding.model import Model
from decoding.step import Slice, Step
from tests.families import FAMILIES, SIZES, VOCAB, build
from tests.tiny import save_tiny_model

IDS = torch.randint(3, VOCAB, (1, 90), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("packed", "fused"), [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize(
    "name", ["llama, biases, theta", "llama, yarn", "mistral, window 9", "qwen2, window 9", "qwen3"]
)
def test_logits_equal_transformers(tmp_path: Path, name: str, packed: bool, fused: bool) -> None:
    """In chunks through the cache, with every way to compute the blocks."""
    plain = build(FAMILIES[name].config)
    plain.save_pretrained(tmp_path)
    with torch.no_grad():
        want = plain(IDS).logits[0]
    model = Model(tmp_path, torch.device("cpu"), torch.float32, packed=packed, fused=fused)
    torch.testing.assert_close(through(model), want, rtol=0, atol=1e-4)


def through(model: Model) -> Tensor:
    cache = SessionCache(model.layout, Rule(4, 128, 16), max_rows=64)
    logits = []
    for chunk in torch.split(IDS[0], 37):
        step = Step([Slice(cache, chunk.tolist(), len(chunk))], model.device, model.groups)
        logits.append(model.forward(step))
        step.commit()
    return torch.cat(logits)


def refusal(folder: Path, **how: Any) -> str:
    with pytest.raises(ModelRefusedError) as refused:
        Model(folder, torch.device("cpu"), torch.float32, **how)
    return str(refused.value)


def save(folder: Path, kind: str, **config: Any) -> Path:
    from transformers import AutoConfig

    sizes = {name: value for name, value in SIZES.items() if name not in config}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **config)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("gpt2", {}, "learned absolute positions"),
        ("opt", {"word_embed_proj_dim": 64, "ffn_dim": 64}, "learned absolute positions"),
        ("bloom", {}, "ALiBi"),
        ("mamba", {}, "recurrent"),
        ("deepseek_v3", {"q_lora_rank": 16, "kv_lora_rank": 16, "n_routed_experts": 8, "num_hidden_layers": 1}, "MLA"),
    ],
)
def test_models_whose_keys_cannot_be_moved_are_refused_with_the_reason(
    tmp_path: Path, kind: str, config: dict[str, Any], reason: str
) -> None:
    """Whether or not they are trusted: it is no question of trust."""
    folder = save(tmp_path, kind, **config)
    for trust in (False, True):
        assert reason in refusal(folder, trust=trust)


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("gpt2", {}, "positions enter layer 0 otherwise than by rotating its queries and keys"),
        ("bloom", {}, "does not take another attention"),
        ("mamba", {}, "does not take another attention"),
        ("deepseek_v3", {"q_lora_rank": 16, "kv_lora_rank": 16, "n_routed_experts": 8}, "MLA"),
    ],
)
def test_what_a_model_does_tells_also_where_its_name_does_not(
    tmp_path: Path, kind: str, config: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new type that works as one of these is on no list."""
    monkeypatch.setattr("decoding.served.REFUSED_TYPES", {})
    assert reason in refusal(save(tmp_path, kind, **config), trust=True)


def test_a_type_that_is_not_proven_is_refused_unless_trusted(tmp_path: Path) -> None:
    save(tmp_path, "olmo", num_key_value_heads=2)
    assert "model type 'olmo' is not proven here; serve --trust-model" in refusal(tmp_path)
    Model(tmp_path, torch.device("cpu"), torch.float32, trust=True)


@pytest.mark.parametrize(
    ("rope", "reason"),
    [
        ({"rope_type": "proportional", "rope_theta": 1e4}, "rope type 'proportional' is not proven"),
        ({"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}, "several dimensions"),
    ],
)
def test_other_ropes_are_refused(tmp_path: Path, rope: dict[str, Any], reason: str) -> None:
    import json

    save_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
    assert reason in refusal(tmp_path)


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    model = build(FAMILIES["llama"].config)
    model.get_parameter("model.layers.1.mlp.up_proj.weight").data[3, 3] = float("nan")
    model.save_pretrained(tmp_path)
    assert "its logits are no numbers in torch.float32" in refusal(tmp_path)


def test_queries_that_are_scaled_by_their_position_are_refused(tmp_path: Path) -> None:
    """Far from the beginning only, where no comparison of short texts comes."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
    rope["original_max_position_embeddings"] = 16384
    save(tmp_path, "ministral3", num_key_value_heads=2, head_dim=16, rope_parameters=rope)
    assert "otherwise than by rotating its queries and keys" in refusal(tmp_path, trust=True)


def test_a_token_without_an_embedding_is_no_obstacle(tmp_path: Path) -> None:
    """Padding has none; it may be any token."""
    config = FAMILIES["llama"].config
    model: Any = build(config)
    model.get_input_embeddings().weight.data[:60] = 0
    model.save_pretrained(tmp_path)
    assert len(Model(tmp_path, torch.device("cpu"), torch.float32).layout.layers) == 3


@pytest.mark.parametrize("fused", [True, False])
def test_a_window_in_a_llamas_configuration_is_not_one(tmp_path: Path, fused: bool) -> None:
    """transformers ignores it there."""
    save(tmp_path, "llama", num_key_value_heads=2, head_dim=16, sliding_window=9)
    model = Model(tmp_path, torch.device("cpu"), torch.float32, fused=fused)
    assert {layer.window for layer in model.layout.layers} == {None}


def test_attention_in_both_directions_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "llama", num_key_value_heads=2, head_dim=16, is_causal=False)
    assert "attends in both directions" in refusal(tmp_path)


def test_a_model_that_does_not_run_with_our_attention_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "nemotron", num_key_value_heads=2, head_dim=16)
    assert "it does not run with our attention: " in refusal(tmp_path, trust=True)
