"""A GGUF file as a model folder that transformers loads in a second or two.

A program of its own (`python -m server.gguf SOURCE TARGET`), so that the memory and the torch it takes end with it.
"""

import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(source: Path, target: Path) -> None:
    """Write the weights of `source` as bfloat16 safetensors into the folder `target`, with config and tokenizer.

    Block scales are float16, so unpacked weights have up to 11 bits of mantissa and bfloat16 rounds them to 8.
    All that is served starts from the rounded ones, in float32 as well.
    """
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if _pre_tokenizer(source) == "smollm":
        # transformers knows no such pre-tokenizer and takes GPT-2's, which splits spaces before a digit differently.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)  # safetensors writes for the owner alone; an image built by one user is run by another


def _pre_tokenizer(source: Path) -> str:
    field = GGUFReader(source).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field else ""


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # a broken file breaks its readers in many ways
        sys.exit(f"{type(error).__name__}: {error}")
