"""The blocks that stand in for transformers' own. That whole models compute the same is in test_model.py."""

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from decoding.fused import RMSNorm, fuse, pack
from decoding.linear import can_pack
from tests.tiny import build_config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_norm_has_the_bits_of_transformers_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    own = LlamaRMSNorm(576, eps=1e-5).to(dtype)
    own.weight.data = torch.randn(576).to(dtype)
    x = (torch.randn(1, 2000, 576) * 10).to(dtype)
    with torch.no_grad():
        assert torch.equal(RMSNorm(own)(x), own(x))


def test_no_weights_are_kept_twice() -> None:
    if not can_pack(torch.float32):
        pytest.skip("this build of torch has no oneDNN")
    model = LlamaForCausalLM(build_config())
    fuse(model, packed=True)
    pack(model)
    assert [name for name, _ in model.named_parameters()] == ["model.embed_tokens.weight"]


def test_an_activation_that_is_not_silu_keeps_its_block() -> None:
    config = build_config()
    config.hidden_act = "gelu"
    model = LlamaForCausalLM(config)
    fuse(model, packed=False)
    assert type(model.model.layers[0].mlp).__name__ == "LlamaMLP"
