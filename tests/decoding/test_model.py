"""Every rope kind that is served, against transformers' own model."""

from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.model import Model, _rotary_forward
from decoding.step import Slice, Step
from tests.tiny import build_config

IDS = torch.randint(3, 259, (1, 90), generator=torch.Generator().manual_seed(0))
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
}


@pytest.mark.parametrize(("packed", "fused"), [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize(
    "changes", [{}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": False}], ids=str
)
def test_logits_equal_transformers(
    tmp_path: Path, name: str, changes: dict[str, Any], packed: bool, fused: bool
) -> None:
    """In chunks through the cache, with every way to compute the blocks."""
    config = build_config()
    config.rope_parameters = ROPES[name]
    config.update(changes)
    torch.manual_seed(0)
    plain = LlamaForCausalLM(config).eval()
    for parameter in plain.parameters():
        if parameter.dim() == 1:  # biases and norms away from zero and one, so that a lost one is seen
            torch.nn.init.normal_(parameter, mean=0.5, std=0.2)
    plain.save_pretrained(tmp_path)
    model = Model(tmp_path, torch.device("cpu"), torch.float32, packed=packed, fused=fused)
    cache = SessionCache(model.shape, Rule(4, 128, 16), model.rope, max_rows=64)
    with torch.no_grad():
        want = plain(IDS).logits[0]
    got = []
    for chunk in torch.split(IDS[0], 37):
        step = Step([Slice(cache, chunk.tolist(), len(chunk))], model.device, model.groups)
        got.append(model.forward(step))
        step.commit()
    torch.testing.assert_close(torch.cat(got), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ROPES)
def test_sinks_move_as_the_model_rotates(tmp_path: Path, name: str) -> None:
    """A stored key moved on by E equals the key that the model itself makes E positions later."""
    config = build_config()
    config.rope_parameters = ROPES[name]
    plain = LlamaForCausalLM(config).eval()
    plain.save_pretrained(tmp_path)
    model = Model(tmp_path, torch.device("cpu"), torch.float64)
    rotary = LlamaRotaryEmbedding(config)
    rotary.forward = MethodType(_rotary_forward, rotary)
    keys = torch.randn(1, 2, 5, 16, dtype=torch.float64)

    def at(positions: torch.Tensor) -> torch.Tensor:
        cos, sin = rotary(keys, positions[None])
        return apply_rotary_pos_emb(keys, keys, cos, sin)[1]  # type: ignore[no-any-return]

    moved = model.rope.advance(at(torch.arange(5)), 4096)
    torch.testing.assert_close(moved, at(torch.arange(4096, 4101)), rtol=0, atol=1e-10)
