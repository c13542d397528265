"""Attention and MLP blocks with their projections joined and few calls between them.

Each block of a model is replaced by a function that computes the same. A step of one row is hundreds of small calls,
and between them the weights stream through the processor's caches, so that each comes cold: the fewer the better.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from transformers.activations import SiLUActivation
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralAttention, MistralMLP, MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, Qwen2MLP, Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm

from cache.attention import Scores
from decoding.linear import join
from decoding.replace import replace
from decoding.step import Step

# Blocks that differ in nothing but biases and a sliding window.
ATTENTIONS = (LlamaAttention, MistralAttention, Qwen2Attention)
MLPS = (LlamaMLP, MistralMLP, Qwen2MLP, Qwen3MLP)
NORMS = (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm)


class Attention:
    """q/k/v in one product, q and k rotated in one go, the step's attention, the output's product."""

    def __init__(self, module: Any, packed: bool) -> None:
        self.project = join([module.q_proj, module.k_proj, module.v_proj], packed)
        self.out = join([module.o_proj], packed)
        self.layer: int = module.layer_idx
        self.how = Scores(module.scaling, window=_window(module))
        self.head_dim: int = module.head_dim
        self.query_heads = module.q_proj.out_features // module.head_dim
        self.kv_heads = module.k_proj.out_features // module.head_dim

    def __call__(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], step: Step, **_: Any
    ) -> tuple[Tensor, None]:
        """hidden_states: [1, rows, hidden]; position_embeddings: cosines and signed sines [rows, 1, head_dim]."""
        cos, signed_sin = position_embeddings
        rows = hidden_states.shape[1]
        heads = self.project(hidden_states).view(rows, -1, self.head_dim)
        rotary = heads[:, : self.query_heads + self.kv_heads]
        halves_swapped = rotary.roll(self.head_dim // 2, -1)
        rotary.mul_(cos).addcmul_(halves_swapped, signed_sin)
        kv = heads[:, self.query_heads :].view(rows, 2, self.kv_heads, self.head_dim)
        mixed = step.attend(self.layer, heads[:, : self.query_heads], kv, self.how)
        return self.out(mixed.reshape(1, rows, -1)), None


def _window(module: nn.Module) -> int | None:
    """The sliding window that a block passes to attention; a Llama has none, whatever its configuration holds."""
    match module:
        case MistralAttention():
            window: int | None = getattr(module.config, "sliding_window", None)
            return window
        case Qwen2Attention():
            return module.sliding_window
    return None


class MLP:
    """gate and up in one product."""

    def __init__(self, module: Any, packed: bool) -> None:
        self.gate_up = join([module.gate_proj, module.up_proj], packed)
        self.down = join([module.down_proj], packed)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., rows, hidden]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(silu(gate).mul_(up))


class RMSNorm:
    """weight * x / rms(x), the quotient rounded to x's dtype before the weight, as Llama has it.

    The bits of transformers' own in float32 and bfloat16; in float64 it computes in float64.
    """

    def __init__(self, module: Any) -> None:
        self.weight, self.eps = module.weight.detach(), module.variance_epsilon
        self.shape = tuple(self.weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., hidden]."""
        normed: Tensor = self.weight * rms_norm(x, self.shape, None, self.eps)
        return normed


def fuse(model: nn.Module, packed: bool) -> bool:
    """Replaces the blocks of a Llama, or one that is built alike, by these; its weights are on their device already.

    Returns whether attention was replaced, which takes cosines and sines as `signed` gives them.
    """
    attention = False
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) in ATTENTIONS:
                replace(module, name, Attention(child, packed))
                attention = True
            elif type(child) in MLPS and isinstance(child.act_fn, SiLUActivation):
                replace(module, name, MLP(child, packed))
            elif type(child) in NORMS:
                replace(module, name, RMSNorm(child))
    return attention


def pack(model: nn.Module) -> None:
    """Replaces every nn.Linear that is left by a packed one."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                replace(module, name, join([child], packed=True))


def signed(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """What `Attention` takes, of cosines and sines [1, rows, head_dim]: [rows, 1, head_dim], the first half negated."""
    half = sin.shape[-1] // 2
    return cos[0, :, None], torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), dim=-1)
