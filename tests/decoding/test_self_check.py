"""What is left for model types that the tests do not prove."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from cache.rope import Rope
from decoding.errors import ModelRefusedError
from decoding.self_check import self_check
from tests.families import FAMILIES, SIZES, build

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [name for name in FAMILIES if "window 9" not in name])
def test_all_proven_models_pass(tmp_path: Path, name: str) -> None:
    """It calls no right model wrong; but for windows below its own capacity, which no real model has."""
    build(FAMILIES[name].config).save_pretrained(tmp_path)
    self_check(tmp_path, CPU)


@pytest.mark.parametrize("kind", ["olmo", "granite", "glm", "starcoder2"])
def test_types_that_are_not_proven_pass_it(tmp_path: Path, kind: str) -> None:
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **SIZES, num_key_value_heads=2, head_dim=16)
    )
    model.save_pretrained(tmp_path)
    self_check(tmp_path, CPU)


def test_windows_that_are_not_kept_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(FAMILIES["gemma3_text, window 50"].config).save_pretrained(tmp_path)
    monkeypatch.setattr("cache.session_cache._own_window", lambda layer, rule: None)
    with pytest.raises(ModelRefusedError, match="its logits with sliding windows are not transformers' own"):
        self_check(tmp_path, CPU)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("phimoe", {"sliding_window": 60, "num_local_experts": 4}),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 60, "max_window_layers": 1, "num_experts": 4}),
    ],
)
def test_windows_that_only_masks_know_are_seen(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    """Their attention is not told of them: ours would see all keys."""
    sizes = SIZES | {"num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    build(AutoConfig.for_model(kind, **sizes, **more)).save_pretrained(tmp_path)
    with pytest.raises(ModelRefusedError, match="its logits with sliding windows are not transformers' own"):
        self_check(tmp_path, CPU)


def test_sinks_that_do_not_move_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(FAMILIES["llama"].config).save_pretrained(tmp_path)
    monkeypatch.setattr("cache.sink_group.SinkGroup._place_sinks", lambda self, layer, evicted: None)
    with pytest.raises(ModelRefusedError, match="through the cache are not transformers' own"):
        self_check(tmp_path, CPU)


def test_positions_that_are_not_relative_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 with a probe that lets it pass."""
    monkeypatch.setattr("decoding.served.REFUSED_TYPES", {})
    monkeypatch.setattr("decoding.probe._rope_of", lambda *_: Rope(torch.ones(8, dtype=torch.float64)))
    monkeypatch.setattr("decoding.probe.POSITIONS", (0, 97))
    config = AutoConfig.for_model("gpt2", vocab_size=97, n_embd=64, n_head=4, n_layer=2, n_positions=8192)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelRefusedError, match="at later positions are not transformers' own"):
        self_check(tmp_path, CPU)
