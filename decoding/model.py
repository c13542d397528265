"""A decoder of transformers with our attention: loaded, checked, and called on packed steps."""

import sys
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig
from transformers.utils.logging import disable_progress_bar

from cache.rope import Rope, angles
from cache.slab import Shape
from decoding.errors import ModelRefusedError
from decoding.fused import fuse, pack, signed
from decoding.linear import can_pack
from decoding.step import Step

ATTENTION = "sinkahead"
# Model types whose text the tests prove equal to transformers' own, and the rope kinds likewise.
SERVED_TYPES = ("llama",)
SERVED_ROPES = ("default", "linear", "llama3", "yarn")


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    step: Step,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer whose attention is not fused; its name is in no mask table, so no mask
    is made or passed. query [1, query_heads, rows, head_dim], key and value [1, kv_heads, rows, head_dim], rotated."""
    layer = module.layer_idx
    assert isinstance(layer, int)
    kv = torch.stack((key[0], value[0])).permute(2, 0, 1, 3)
    return step.attend(layer, query[0].transpose(0, 1), kv, scaling)[None], None


AttentionInterface.register(ATTENTION, _attention)


def _rotary_forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces a rotary module's forward: the same cosines and sines [1, rows, head_dim], from float64 angles."""
    turns = angles(position_ids, self.inv_freq)
    turns = torch.cat((turns, turns), dim=-1)
    return (turns.cos() * self.attention_scaling).to(x.dtype), (turns.sin() * self.attention_scaling).to(x.dtype)


def _fused_rotary_forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The same as fused attention takes them."""
    return signed(*_rotary_forward(self, x, position_ids))


def check(config: PretrainedConfig) -> None:
    """Raises ModelRefusedError with the reason where the model would not be served exactly."""
    if config.model_type not in SERVED_TYPES:
        raise ModelRefusedError(
            f"model type {config.model_type!r} is not proven here; served are: {', '.join(SERVED_TYPES)}"
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in SERVED_ROPES:
        raise ModelRefusedError(f"rope type {kind!r} is not proven here; served are: {', '.join(SERVED_ROPES)}")


def resolve_device(device: str) -> torch.device:
    """ "auto" is CUDA where it is, the CPU elsewhere; a device that is not there raises ModelRefusedError."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError) as error:
        raise ModelRefusedError(f"device {device!r} is not usable: {str(error).splitlines()[0]}") from None
    return resolved


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """ "auto" is bfloat16 where the device computes in it, float32 elsewhere."""
    if dtype != "auto":
        resolved = getattr(torch, dtype)
        assert isinstance(resolved, torch.dtype)
        return resolved
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if can_pack(torch.bfloat16) else torch.float32


class Model:
    """Weights on a device, and the forward of one step."""

    def __init__(
        self, path: Path, device: torch.device, dtype: torch.dtype, *, packed: bool = True, fused: bool = True
    ) -> None:
        """packed: pack linear layers, on a CPU that has fast kernels for the dtype; fused: replace whole blocks."""
        if not sys.stderr.isatty():
            disable_progress_bar()  # in a log file each of its updates is a line
        config = AutoConfig.from_pretrained(path)
        check(config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=ATTENTION, output_loading_info=True
        )
        model, loading = loaded
        if missing := sorted(loading["missing_keys"]):  # transformers would leave them random
            raise ModelRefusedError(f"{len(missing)} weights are missing in {path}, {missing[0]} among them")
        if not model.is_backend_compatible():
            raise ModelRefusedError(f"transformers' {type(model).__name__} does not take another attention")
        rotary = model.model.rotary_emb
        rotary.forward = MethodType(_fused_rotary_forward if fused else _rotary_forward, rotary)
        model.requires_grad_(False).eval().to(device)
        self.packed = packed and device.type == "cpu" and can_pack(dtype)
        if fused:
            fuse(model, self.packed)
        if self.packed:
            pack(model)
        self._model = model
        self.config = config
        self.device, self.dtype = device, dtype
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if 2 * rotary.inv_freq.numel() != head_dim:
            raise ModelRefusedError("only a part of each head is rotated, which is not proven here")
        self.groups = config.num_attention_heads // config.num_key_value_heads  # query heads per KV head
        self.shape = Shape(config.num_hidden_layers, config.num_key_value_heads, head_dim, dtype, device)
        self.rope = Rope(rotary.inv_freq.to(torch.float64))
        self.end_ids = _end_ids(path, config)

    def forward(self, step: Step) -> Tensor:
        """Runs a step through all layers, into the caches; returns logits [step.keep, vocabulary], float32 or wider."""
        with torch.inference_mode():
            out = self._model(
                input_ids=step.tokens, position_ids=step.positions, use_cache=False, logits_to_keep=step.keep, step=step
            )
            logits: Tensor = out.logits[0]
            return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _end_ids(path: Path, config: PretrainedConfig) -> list[int]:
    """The model's end tokens: its generation config's where that names any."""
    try:
        ids = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        ids = None
    ids = config.eos_token_id if ids is None else ids
    return [ids] if isinstance(ids, int) else list(ids or [])
