"""A decoder of transformers with our attention: loaded, checked, and called on packed steps."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig
from transformers.utils.logging import disable_progress_bar

from cache.attention import Scores
from cache.session_cache import SessionCache
from decoding.errors import ModelRefusedError
from decoding.fused import fuse, pack
from decoding.linear import can_pack
from decoding.probe import probe
from decoding.rotary import replace_rotary
from decoding.served import check
from decoding.step import Slice, Step

ATTENTION = "sinkahead"


def _attention(  # noqa: PLR0913 - what transformers passes
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    step: Step,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer whose attention is not fused; its name is in no mask table, so no mask
    is made or passed. query [1, query_heads, rows, head_dim], key and value [1, kv_heads, rows, head_dim], rotated."""
    layer = module.layer_idx
    assert isinstance(layer, int)
    if value.shape != key.shape:
        raise ModelRefusedError("its keys and values have unlike sizes (MLA, for one)")
    kv = torch.stack((key[0], value[0])).permute(2, 0, 1, 3)
    mixed = step.attend(layer, query[0].transpose(0, 1), kv, Scores(scaling, softcap, s_aux, sliding_window))
    return mixed.contiguous()[None], None


AttentionInterface.register(ATTENTION, _attention)


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
        self,
        path: Path,
        device: torch.device,
        dtype: torch.dtype,
        *,
        config: PretrainedConfig | None = None,
        trust: bool = False,
        packed: bool = True,
        fused: bool = True,
    ) -> None:
        """config: instead of the folder's; trust: take model types that are not proven, too; packed: pack linear
        layers, on a CPU that has fast kernels for the dtype; fused: replace whole blocks. Raises ModelRefusedError with
        the reason.
        """
        if not sys.stderr.isatty():
            disable_progress_bar()  # in a log file each of its updates is a line
        config = config or AutoConfig.from_pretrained(path)
        check(config, trust=trust)
        kernels = {"experts_implementation": "eager"} if dtype == torch.float64 else {}  # the others know no float64
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, attn_implementation=ATTENTION, output_loading_info=True, **kernels
        )
        model, loading = loaded
        if missing := sorted(loading["missing_keys"]):  # transformers would leave them random
            raise ModelRefusedError(f"{len(missing)} weights are missing in {path}, {missing[0]} among them")
        if not model.is_backend_compatible():
            raise ModelRefusedError(f"transformers' {type(model).__name__} does not take another attention")
        model.requires_grad_(False).eval().to(device)
        rotaries = replace_rotary(model)
        self.packed = packed and device.type == "cpu" and can_pack(dtype)
        if fused and fuse(model, self.packed):
            for rotary in rotaries:
                rotary.signed = True
        if self.packed:
            pack(model)
        self._model = model
        self.config = config
        self.device, self.dtype = device, dtype
        frequencies = [turns for rotary in rotaries for turns in rotary.frequencies.values()]
        self.layout, self.groups, self.plain_scores = probe(model, config.num_hidden_layers, frequencies, dtype)
        self.end_ids = _end_ids(path, config)

    def forward(self, step: Step) -> Tensor:
        """Runs a step through all layers, into the caches; returns logits [step.keep, vocabulary], float32 or wider."""
        with torch.inference_mode():
            out = self._model(
                input_ids=step.tokens, position_ids=step.positions, use_cache=False, logits_to_keep=step.keep, step=step
            )
            logits: Tensor = out.logits[0]
            return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def extend(self, cache: SessionCache, tokens: Sequence[int], num_logits: int) -> Tensor:
        """A step of one session alone: forwards the tokens into its cache; logits of the last rows."""
        step = Step([Slice(cache, tokens, num_logits)], self.device, self.groups)
        logits = self.forward(step)
        step.commit()
        return logits


def _end_ids(path: Path, config: PretrainedConfig) -> list[int]:
    """The model's end tokens: its generation config's where that names any."""
    try:
        ids = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        ids = None
    ids = config.eos_token_id if ids is None else ids
    named = [ids] if isinstance(ids, int) else list(ids or [])
    return [token for token in named if 0 <= token < config.vocab_size]  # some name one that the model cannot say
