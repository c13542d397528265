"""Tiny random models of every kind that is served, and how each turns its keys."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

VOCAB = 97
HEAD_DIM = 16
THETA = 10000.0
LAYERS = 3


class Family(NamedTuple):
    """A configuration, and what its layers do with keys: written by hand, from the papers and transformers' sources."""

    config: PretrainedConfig
    pairs: int = HEAD_DIM // 2  # rotated pairs of a head
    interleaved: bool = False
    unrotated: tuple[int, ...] = ()  # layers without rotation
    theta: Callable[[int], float] = lambda layer: THETA
    own_frequencies: bool = True  # whether a scaled rope kind makes them: then the model's own are taken

    def turns(self, model: PreTrainedModel) -> Callable[[int], Tensor | None]:
        """Frequencies of each layer."""

        def of_layer(layer: int) -> Tensor | None:
            if layer in self.unrotated:
                return None
            if self.own_frequencies:
                exponents = torch.arange(self.pairs, dtype=torch.float64) / self.pairs
                return self.theta(layer) ** -exponents
            base: Any = model.base_model
            return base.rotary_emb.inv_freq  # type: ignore[no-any-return]

        return of_layer


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "head_dim": HEAD_DIM}


def _rope(kind: str = "default", theta: float = THETA, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": theta, **more}


LONG: dict[str, Any] = {"short_factor": [1.0 + i / 10 for i in range(8)], "long_factor": [4.0] * 8}
SCALED: Mapping[str, dict[str, Any]] = {
    "linear": _rope("linear", factor=4.0),
    "llama3": _rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    ),
    "yarn": _rope("yarn", factor=4.0, original_max_position_embeddings=64),
    "dynamic": _rope("dynamic", factor=4.0),
    "longrope": _rope("longrope", original_max_position_embeddings=2048, **LONG),
}


def _gemma3(window: int) -> Family:
    config = Gemma3TextConfig(
        **GROUPED,
        query_pre_attn_scalar=20,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"sliding_attention": _rope(), "full_attention": _rope(theta=1e6)},
    )
    return Family(config, theta=lambda layer: 1e6 if layer == 1 else THETA)


def _gpt_oss(window: int) -> Family:
    config = GptOssConfig(
        **GROUPED,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=_rope("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0),
    )
    return Family(config, own_frequencies=False)


def _mixed_windows(window: int) -> dict[str, Any]:
    return {
        "use_sliding_window": True,
        "sliding_window": window,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    }


# Windows of 9 are below the capacities of the tests, 50 is above them.
FAMILIES: dict[str, Family] = {
    "llama": Family(LlamaConfig(**GROUPED, rope_parameters=_rope())),
    "llama, multi-query": Family(LlamaConfig(**SIZES, num_key_value_heads=1, head_dim=HEAD_DIM)),
    "llama, biases, theta": Family(
        LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True, rope_parameters=_rope(theta=5e5)),
        theta=lambda layer: 5e5,
    ),
    **{
        f"llama, {kind}": Family(LlamaConfig(**GROUPED, rope_parameters=rope), own_frequencies=False)
        for kind, rope in SCALED.items()
    },
    "mistral": Family(MistralConfig(**GROUPED, sliding_window=None, rope_parameters=_rope())),
    "mistral, window 9": Family(MistralConfig(**GROUPED, sliding_window=9, rope_parameters=_rope())),
    "mistral, window 50": Family(MistralConfig(**GROUPED, sliding_window=50, rope_parameters=_rope())),
    "qwen2": Family(Qwen2Config(**SIZES, num_key_value_heads=2, rope_parameters=_rope())),
    "qwen2, window 9": Family(
        Qwen2Config(**SIZES, num_key_value_heads=2, rope_parameters=_rope(), **_mixed_windows(9))
    ),
    "qwen3": Family(Qwen3Config(**GROUPED, rope_parameters=_rope())),
    "qwen3, window 9": Family(Qwen3Config(**GROUPED, rope_parameters=_rope(), **_mixed_windows(9))),
    "phi3": Family(Phi3Config(**SIZES, num_key_value_heads=2, sliding_window=None, rope_parameters=_rope())),
    "phi3, partial, longrope, window 9": Family(
        Phi3Config(
            **SIZES,
            num_key_value_heads=2,
            sliding_window=9,
            rope_parameters=_rope(
                "longrope",
                original_max_position_embeddings=2048,
                partial_rotary_factor=0.5,
                short_factor=[1.0, 1.1, 1.3, 1.4],
                long_factor=[4.0] * 4,
            ),
        ),
        pairs=4,
        own_frequencies=False,
    ),
    "gemma": Family(GemmaConfig(**GROUPED, rope_parameters=_rope())),
    "gemma2, window 9": Family(
        Gemma2Config(
            **GROUPED,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=5.0,
            sliding_window=9,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=_rope(),
        )
    ),
    "gemma3_text, window 9": _gemma3(9),
    "gemma3_text, window 50": _gemma3(50),
    "gpt_neox": Family(GPTNeoXConfig(**SIZES, rope_parameters=_rope(partial_rotary_factor=0.25)), pairs=2),
    "gpt_neox, sequential": Family(
        GPTNeoXConfig(
            **SIZES,
            use_parallel_residual=False,
            attention_bias=False,
            rope_parameters=_rope(partial_rotary_factor=1.0),
        )
    ),
    "cohere": Family(
        CohereConfig(**SIZES, num_key_value_heads=2, logit_scale=0.5, rope_parameters=_rope()), interleaved=True
    ),
    "cohere, q/k norms": Family(
        CohereConfig(**SIZES, num_key_value_heads=2, use_qk_norm=True, rope_parameters=_rope()), interleaved=True
    ),
    "phi": Family(PhiConfig(**SIZES, num_key_value_heads=2, rope_parameters=_rope(partial_rotary_factor=0.5)), pairs=4),
    "gptj": Family(
        GPTJConfig(
            vocab_size=VOCAB,
            n_positions=4096,
            n_embd=64,
            n_layer=LAYERS,
            n_head=4,
            rotary_dim=8,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
        ),
        pairs=4,
        interleaved=True,
    ),
    "smollm3": Family(
        SmolLM3Config(**SIZES, num_key_value_heads=2, no_rope_layers=[1, 0, 1], rope_parameters=_rope()),
        unrotated=(1,),
    ),
    "gpt_oss, window 9": _gpt_oss(9),
    "gpt_oss, window 50": _gpt_oss(50),
}


def build(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A random model; what is one or zero when fresh is random, too, so that a lost bias or norm is seen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=0.5, std=0.2)
            elif "expert" in str(type(parameter)) or parameter.dim() == 3:
                torch.nn.init.normal_(parameter, std=0.2)
    model.eval()
    return model
