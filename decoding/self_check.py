"""What a model must pass whose type the tests do not prove: comparison with transformers' own forward, at start-up."""

from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from cache.rule import Rule
from cache.session_cache import SessionCache
from decoding.errors import ModelRefusedError
from decoding.model import Model
from decoding.served import trained_context

RULE = Rule(sinks=4, capacity=32, block=12)
LENGTH = RULE.capacity + RULE.block  # up to the last query of the first E that is not 0
CHUNK = 7
WINDOW = 16  # what windows are shortened to
LENGTHS = ("sliding_window", "attention_chunk_size", "local_attention", "window_size", "attention_window_size")
MOVED = 256  # further off transformers' own angles, in float32, are not exact enough
TOLERANCE = 1e-3  # of the logits' standard deviation, in float32


def self_check(path: Path, device: torch.device) -> None:
    """Raises ModelRefusedError where ours is another model than transformers' own; in float32, both in memory at once.

    Compares logits of random tokens through our cache, across an eviction, with those of transformers, and these with
    its own at later positions; and its sliding windows, shortened to fit into the text, with transformers' own masks.
    """
    model, plain = _both(path, device, None)
    ids = torch.randint(model.config.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()
    want = _plain(plain, ids, device, first=0)
    later = min(MOVED, trained_context(model.config) - LENGTH)
    _compare("its logits at later positions", _plain(plain, ids, device, first=later), want)
    _compare("its logits through the cache", _cached(model, ids, RULE), want)
    del model, plain
    _check_masks(path, device, ids)


def _check_masks(path: Path, device: torch.device, ids: list[int]) -> None:
    """With the masks that transformers makes itself, and all windows and chunks shortened to fit into the text."""
    config = AutoConfig.from_pretrained(path)
    for name in LENGTHS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, WINDOW)
    model, plain = _both(path, device, config)
    with torch.inference_mode():
        want = plain(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]
    _compare("its logits with sliding windows", _cached(model, ids, Rule(RULE.sinks, LENGTH, 1)), want)


def _both(path: Path, device: torch.device, config: PretrainedConfig | None) -> tuple[Model, Any]:
    """Ours, and transformers' own."""
    model = Model(path, device, torch.float32, config=config, trust=True, packed=False, fused=False)
    plain: Any = AutoModelForCausalLM.from_pretrained(
        path, config=copy(config), dtype=torch.float32, attn_implementation="eager"
    )
    return model, plain.eval().to(device)


def _plain(plain: Any, ids: list[int], device: torch.device, first: int) -> Tensor:
    """Logits [LENGTH, vocabulary] by transformers alone, the text beginning at position `first`.

    Between the last query with E = 0 and the first with another stand copies of the sinks, E positions later, that
    see each other only: their keys are those of sinks moved on, made by the model itself.
    """
    sinks, capacity, evicted = RULE.sinks, RULE.capacity, RULE.evicted(LENGTH - 1)
    text = list(range(capacity)), list(range(capacity, LENGTH))
    rows = [*text[0], *(s + evicted for s in range(sinks)), *text[1]]
    tokens = [*ids[:capacity], *ids[:sinks], *ids[capacity:]]
    visible = torch.ones(len(rows), len(rows), dtype=torch.bool).tril()
    visible[capacity:, : sinks + evicted] = False  # what was evicted, and the sinks where they were
    visible[capacity : capacity + sinks, :capacity] = False
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)[None, None]
    with torch.inference_mode():
        logits: Tensor = plain(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.tensor([rows], device=device) + first,
            attention_mask=mask.to(device),
            use_cache=False,
        ).logits[0]
    return torch.cat((logits[:capacity], logits[capacity + sinks :]))


def _cached(model: Model, ids: list[int], rule: Rule) -> Tensor:
    cache = SessionCache(model.layout, rule, max_rows=CHUNK)
    logits = []
    while cache.length < len(ids):
        tokens = ids[cache.length : cache.length + CHUNK]
        logits.append(model.extend(cache, tokens, len(tokens)))
    return torch.cat(logits)


def _compare(what: str, got: Tensor, want: Tensor) -> None:
    error = float((got - want).abs().max() / want.std())
    if not error < TOLERANCE:
        raise ModelRefusedError(f"self-check: {what} are not transformers' own (off by {error:.2g} of their deviation)")
