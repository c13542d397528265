"""What the numbers in a cache depend on, in one line: equal for two engines that may take over each other's caches."""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import torch

from cache.layout import Layout
from decoding.model import Model
from decoding.options import EngineFacts

_PIECES, _PIECE = 64, 4096  # of a weight file, evenly spaced: reading all of it would take as long as loading it
_WEIGHTS = {".safetensors", ".bin", ".gguf"}


def fingerprint(model: Model, facts: EngineFacts) -> str:
    """Of model, layout, kernels and sizes; the length of the pinned block is the session's own."""
    config = model.config.to_dict()
    config.pop("_name_or_path", None)  # the same weights may lie elsewhere
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    _add_layout(digest, model.layout)
    for file in sorted(Path(facts.model).iterdir()):
        if file.suffix in _WEIGHTS:
            _add_weights(digest, file)
    return (
        f"{facts.model_type} {digest.hexdigest()} {facts.dtype} {facts.device.split(':')[0]} {facts.exact}"
        f" {facts.policy} C={facts.capacity} B={facts.block} rows={facts.max_rows} {facts.attention}"
        f" torch={torch.__version__} transformers={version('transformers')}"
    )


def _add_layout(digest: "hashlib.blake2b", layout: Layout) -> None:
    digest.update(f"{layout.kv_heads} {layout.head_dim} {layout.dtype} {layout.exact}".encode())
    for layer in layout.layers:
        digest.update(f" {layer.window}".encode())
        if layer.rope is not None:
            digest.update(f" {layer.rope.interleaved}".encode() + layer.rope.inv_freq.cpu().numpy().tobytes())


def _add_weights(digest: "hashlib.blake2b", path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
        for index in range(_PIECES):
            file.seek(max(0, size - _PIECE) * index // (_PIECES - 1))
            digest.update(file.read(_PIECE))
