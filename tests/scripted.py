"""A model that always says the same, behind whatever prompt, and a tokenizer in whose vocabulary its text is."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tests.tiny import build_tokenizer

BEGIN, END = "\n", "<|im_end|>"  # what the prompt's template ends with, and what ends an answer


def save_scripted_model(folder: Path, pieces: Sequence[str]) -> Path:
    """pieces: of its text, all different, each a token. Which one follows depends on the one before alone."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    chain = tokenizer.convert_tokens_to_ids([tokenizer.tokenize(BEGIN)[0], *pieces, END])
    assert isinstance(chain, list)
    size = -len(tokenizer) % 16 + len(tokenizer)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        head_dim=16,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        for before, after in pairwise(chain):
            model.lm_head.weight[after, before] = 1.0
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
