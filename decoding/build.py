"""From what was asked for to an engine: loads the model and resolves every "auto"."""

import logging
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoTokenizer

from cache.layout import Layout
from cache.policy import POLICIES, Policy
from cache.rule import Rule
from decoding.budget import ROWS, Costs, measure
from decoding.drafting import DraftingError, resolve
from decoding.engine import Engine
from decoding.errors import ModelRefusedError
from decoding.exactness import make_exact
from decoding.grammar import GrammarError, Grammars
from decoding.memory import free_bytes
from decoding.model import Model, resolve_device, resolve_dtype
from decoding.options import EngineFacts, EngineOptions
from decoding.ranked import rank
from decoding.recycling import WIDTH
from decoding.self_check import self_check
from decoding.served import SERVED_TYPES, trained_context
from decoding.step import Slice, Step

logger = logging.getLogger(__name__)

_CACHED = (64, 512)  # tokens for which the cost of a step is measured; beyond, it goes on as a line
_PATIENCE = 0.3  # seconds of steps for each of them, at least a round


def build(options: EngineOptions) -> Engine:
    """Raises ModelRefusedError where the model cannot be served as asked."""
    began = time.monotonic()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = resolve_device(options.device)
    path = Path(options.model)
    if options.trust_model and AutoConfig.from_pretrained(path).model_type not in SERVED_TYPES:
        self_check(path, device)
    model = Model(path, device, resolve_dtype(options.dtype, device), trust=options.trust_model)
    inexact = "it was asked to be fast" if options.exact == "fast" else make_exact(model)
    if inexact and options.exact == "bits":
        raise ModelRefusedError(f"its bits cannot be kept equal: {inexact}")
    max_rows = options.max_rows or (2048 if device.type == "cuda" else 128)
    policy = POLICIES[options.policy]
    max_sinks = min(options.capacity // 2, options.capacity - options.block) if policy.pins else 0
    rule = policy.rule(max_sinks, options.capacity, options.block)
    session_bytes = policy.cache.bytes(model.layout, rule, max_rows=max_rows)
    trained = trained_context(model.config)
    if options.capacity > trained:
        raise ModelRefusedError(f"capacity {options.capacity} is more than the {trained} tokens it was trained on")
    memory = options.memory_bytes or free_bytes(device) // 2
    if memory < session_bytes:
        raise ModelRefusedError(f"a session's cache takes {session_bytes} bytes, and {memory} are there for caches")
    try:
        drafting = resolve(options.drafting, max_rows)
    except DraftingError as error:
        raise ModelRefusedError(f"{error.parameter}: {error}") from None
    costs = step_costs(model, policy, rule, max_rows)
    facts = EngineFacts(
        model=options.model,
        model_type=model.config.model_type,
        exact="fast" if inexact else "bits",
        layers=_describe(model.layout, options.capacity),
        device=str(device),
        dtype=str(model.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        policy=options.policy,
        capacity=options.capacity,
        block=options.block,
        max_length=options.capacity if options.policy == "dense" else None,
        trained_context=trained,
        max_rows=max_rows,
        drafting=drafting,
        step_seconds={rows: costs(rows, options.capacity) for rows in (1, 8, 16, 32) if rows <= max_rows},
        max_sinks=max_sinks,
        session_bytes=session_bytes,
        max_sessions=memory // session_bytes,
        host_bytes=options.host_bytes if options.host_bytes >= 0 else free_bytes(torch.device("cpu")) // 4,
        vocab_size=model.config.vocab_size,
        end_ids=model.end_ids,
        attention="SDPA, a call per session" + (", packed linears" if model.packed else ""),
        load_seconds=time.monotonic() - began,
    )
    return Engine(model, facts, costs, head_bytes=options.head_bytes, grammars=_grammars(path, facts))


def _grammars(path: Path, facts: EngineFacts) -> Grammars | GrammarError:
    """Not every model can follow one, which is no reason not to serve it."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path).backend_tokenizer
    except Exception as error:  # of many kinds, as there are files and formats
        logger.debug("There is no tokenizer", exc_info=True)
        return GrammarError(f"the model's folder has no tokenizer that can be read: {type(error).__name__}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        return Grammars(tokenizer.to_str(), facts.vocab_size, facts.end_ids)
    except GrammarError as error:
        return error


def step_costs(model: Model, policy: Policy, rule: Rule, max_rows: int) -> Costs:
    """Measured with steps of one session, rows that continue each other behind a cache of two sizes."""
    cache = policy.new_cache(model.layout, rule, max_rows=max_rows)
    token = int(model.config.vocab_size) // 2
    fuller = min(_CACHED[1], rule.capacity - 1)
    cached = (min(_CACHED[0], fuller // 2), fuller)

    def step(rows: int, tokens: int) -> float:
        while cache.length < tokens:
            model.extend(cache, [token] * min(max_rows, tokens - cache.length), 1)
        began = time.perf_counter()
        chain = [(1 << count) - 1 for count in range(1, rows + 1)]
        rank(model.forward(Step([Slice(cache, [token] * rows, rows, chain)], model.device, model.groups)), WIDTH)
        return time.perf_counter() - began

    return measure(step, [rows for rows in ROWS if rows <= max(max_rows, ROWS[1])], cached, _PATIENCE)


def _describe(layout: Layout, capacity: int) -> str:
    """What the layers do, in words."""
    kinds: dict[str, int] = {}
    for layer in layout.layers:
        kept = layer.window is not None and layer.window <= capacity
        kind = f"keep a window of {layer.window} tokens" if kept else "follow the policy"
        rotated = 2 * layer.rope.inv_freq.numel() if layer.rope else 0
        if rotated < layout.head_dim:
            kind += f" with {rotated} of {layout.head_dim} elements rotated" if rotated else " without rotation"
        kinds[kind] = kinds.get(kind, 0) + 1
    heads = f"{layout.kv_heads} key and value head{'s' if layout.kv_heads > 1 else ''} each"
    return f"{len(layout.layers)}, {heads}: " + "; ".join(f"{count} {kind}" for kind, count in kinds.items())
