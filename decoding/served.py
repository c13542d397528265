"""Which models are served, and why others are not, as far as their configuration tells."""

from typing import Any

from transformers import PretrainedConfig

from decoding.errors import ModelRefusedError

# Model types whose logits the tests prove, against transformers' own and against the oracle past the capacity.
SERVED_TYPES = (
    "cohere",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "llama",
    "mistral",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
)
# Rope kinds likewise. Frequencies of the last two depend on the text's length, and are frozen for short texts.
SERVED_ROPES = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")

_LEARNED = "it learned absolute positions: keys cannot be moved"
_ALIBI = "its positions are ALiBi's, not rotary"
_RECURRENT = "it has recurrent layers: what they hold is no set of keys"
_LATENT = "its keys are latent (MLA): what is cached is not what is rotated"
_SECTIONS = "its positions have several dimensions (multimodal rope)"
_CHUNKED = "its layers attend in chunks of the text"
REFUSED_TYPES = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "opt", "biogpt", "openai-gpt", "xglm", "ctrl"), _LEARNED),
    **dict.fromkeys(("bloom", "mpt"), _ALIBI),
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "jamba", "zamba", "zamba2", "bamba", "rwkv", "xlstm", "recurrent_gemma"),
        _RECURRENT,
    ),
    **dict.fromkeys(
        ("falcon_h1", "granitemoehybrid", "lfm2", "lfm2_moe", "minimax", "nemotron_h", "qwen3_next", "qwen3_5_text"),
        _RECURRENT,
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "longcat_flash", "youtu"), _LATENT),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_omni_thinker", "glm4v"), _SECTIONS),
    **dict.fromkeys(("llama4", "llama4_text"), _CHUNKED),
}


def check(config: PretrainedConfig, *, trust: bool) -> None:
    """Raises ModelRefusedError with the reason where the model would not be served exactly.

    trust: types that are not proven pass; their self-check (`decoding.self_check`) is what is left.
    """
    kind = config.model_type
    if reason := REFUSED_TYPES.get(kind):
        raise ModelRefusedError(f"model type {kind!r} cannot be served: {reason}")
    if kind not in SERVED_TYPES and not trust:
        raise ModelRefusedError(
            f"model type {kind!r} is not proven here; serve --trust-model compares it with transformers at start-up "
            f"and serves it where they agree. Proven are: {', '.join(SERVED_TYPES)}"
        )
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        raise ModelRefusedError("it attends in both directions")
    for rope in _ropes(config):
        rope_type = rope.get("rope_type", "default")
        if rope_type not in SERVED_ROPES:
            raise ModelRefusedError(
                f"rope type {rope_type!r} is not proven here; served are: {', '.join(SERVED_ROPES)}"
            )
        if "mrope_section" in rope:
            raise ModelRefusedError(_SECTIONS)


def trained_context(config: PretrainedConfig) -> int:
    """Most tokens that its queries may see: what it was trained on, or its frozen frequencies are meant for."""
    lengths = [int(config.max_position_embeddings)]
    lengths += [
        int(rope["original_max_position_embeddings"])
        for rope in _ropes(config)
        if rope.get("rope_type") in ("longrope", "dynamic") and "original_max_position_embeddings" in rope
    ]
    return min(lengths)


def _ropes(config: PretrainedConfig) -> list[dict[str, Any]]:
    """Its rope parameters: one set, or one for each type of layers."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
