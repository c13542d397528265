"""The engine: many sessions, one step at a time. Plan, run, settle. Token ids only."""

import logging
import math
import time
from array import array
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoConfig

from cache.layout import Layout
from cache.policy import POLICIES
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.slab import UndoExhaustedError
from decoding.drafts import Trie
from decoding.errors import ModelRefusedError, NoPlaceError
from decoding.memory import free_bytes
from decoding.model import Model, resolve_device, resolve_dtype
from decoding.options import EngineFacts, EngineOptions
from decoding.plan import Share, plan
from decoding.sampling import choose, first_argmax
from decoding.self_check import self_check
from decoding.served import SERVED_TYPES, trained_context
from decoding.step import Slice, Step
from decoding.turn import Fault, Output, Sampling, Turn
from decoding.verify import verify

logger = logging.getLogger(__name__)


class _Session:
    """All ids of a conversation; those from cache.length on are still to be forwarded.

    After a step of a running turn that is one: the pending token, which was chosen last and is not cached yet.
    """

    def __init__(self, cache: SessionCache) -> None:
        self.cache = cache
        self.ids = array("i")
        self.turn: Turn | None = None
        self.generated = 0  # tokens of the running turn

    def num_waiting(self) -> int:
        return self.cache.waiting(len(self.ids))

    def room(self, max_tokens: int) -> int:
        """How many of max_tokens can be generated: the last one need not be forwarded."""
        limit = self.cache.limit
        return max_tokens if limit is None else min(max_tokens, limit + 1 - len(self.ids))


class Engine:
    """Sessions, each in a place of its own, and the forward that serves all of them.

    Not thread-safe: one caller, who calls `step` while `has_work`.
    """

    def __init__(self, model: Model, facts: EngineFacts) -> None:
        self.facts = facts
        self._model = model
        self._policy = POLICIES[facts.policy]
        self._sessions: dict[str, _Session] = {}
        self._running: dict[str, _Session] = {}  # in order of precedence: whoever was served goes to the end

    def open(self, session: str, sinks: int) -> None:
        """Takes a place. sinks: length of the pinned block. Raises NoPlaceError, or ValueError for what cannot be."""
        if session in self._sessions:
            raise ValueError(f"session {session!r} is open already")
        if len(self._sessions) >= self.facts.max_sessions:
            raise NoPlaceError(f"all {self.facts.max_sessions} places are taken")
        rule = self._policy.rule(sinks, self.facts.capacity, self.facts.block)
        self._sessions[session] = _Session(self._new_cache(rule))

    def start(self, turn: Turn) -> None:
        """Begins a turn of an open session that runs none: its tokens are forwarded behind all that is there.

        Raises ValueError for what cannot be, and changes nothing then.
        """
        session = self._sessions[turn.session]
        if not 0 <= min(turn.tokens, default=0) <= max(turn.tokens, default=0) < self.facts.vocab_size:
            raise ValueError(f"token ids are between 0 and {self.facts.vocab_size - 1}")
        if session.turn is not None:
            raise ValueError(f"session {turn.session!r} runs a turn already")
        if not turn.tokens or turn.max_tokens < 1:
            raise ValueError("a turn forwards at least one token and generates at least one")
        length, limit = len(session.ids) + len(turn.tokens), session.cache.limit
        if limit is not None and length > limit:
            raise ValueError(f"{length} tokens do not fit into a cache of {limit} that evicts none")
        session.ids.extend(turn.tokens)
        session.turn, session.generated = turn, 0
        self._running[turn.session] = session

    def finish(self, session: str, keep: int) -> int:
        """Ends the session's running turn, if any, and forgets all tokens from text position `keep` on.

        Returns how many are held. A roll-back further than the cache remembers leaves them to be forwarded anew.
        """
        state = self._sessions[session]
        if keep < 0:
            raise ValueError(f"cannot keep {keep} tokens")
        state.turn = None
        self._running.pop(session, None)
        del state.ids[keep:]
        try:
            state.cache.roll_back(min(len(state.ids), state.cache.length))
        except UndoExhaustedError:
            state.cache = self._new_cache(state.cache.rule)
        return len(state.ids)

    def close(self, session: str) -> None:
        """Frees the session's place."""
        self._running.pop(session, None)
        del self._sessions[session]

    @property
    def has_work(self) -> bool:
        """Whether any turn is running."""
        return bool(self._running)

    @property
    def running(self) -> set[str]:
        """Sessions whose turn is running."""
        return set(self._running)

    def step(self) -> list[Output | Fault]:
        """One forward over the running sessions. After an error none of those it touched runs on; all can go on."""
        shares = self.plan()
        try:
            logits = self.run(shares)
            return self.settle(shares, logits)
        except Exception:
            self._abandon([share.session for share in shares])
            raise

    def plan(self) -> list[Share]:
        """The rows of the next step."""
        return plan(((name, state.num_waiting()) for name, state in self._running.items()), self.facts.max_rows)

    def run(self, shares: list[Share]) -> Tensor:
        """Forwards the shares into their caches; logits [complete shares, vocabulary], in their order."""
        slices = []
        for share in shares:
            state = self._sessions[share.session]
            first = state.cache.length
            slices.append(Slice(state.cache, state.ids[first : first + share.rows], int(share.complete)))
        step = Step(slices, self._model.device, self._model.groups)
        logits = self._model.forward(step)
        step.commit()
        return logits

    def settle(self, shares: list[Share], logits: Tensor) -> list[Output | Fault]:
        """Chooses and verifies each session's tokens, and ends the turns that are done.

        An error with one session is that session's: the others have been forwarded, and go on.
        """
        complete = [share.session for share in shares if share.complete]
        best = first_argmax(logits)
        largest = logits.gather(-1, best[:, None])[:, 0]  # NaN where any is
        picks = torch.stack((best.double(), largest.double()), dim=-1).tolist()  # one transfer for all of them
        results: list[Output | Fault] = []
        for row, name in enumerate(complete):
            state = self._running.pop(name)
            try:
                if not math.isfinite(picks[row][1]):
                    raise ArithmeticError("the model's logits are no numbers")
                results.append(self._settle(name, state, logits[row:], [int(token) for token, _ in picks[row:]]))
            except Exception as error:
                logger.exception("A session failed")
                self._abandon([name])
                results.append(Fault(session=name, reason=f"{type(error).__name__}: {error}"))
        return results

    def _settle(self, name: str, state: _Session, logits: Tensor, best: list[int]) -> Output:
        """One session's tokens; its rows of the step's logits come first."""
        turn = state.turn
        assert turn is not None
        pick = partial(_pick, turn.sampling, len(state.ids), logits, best)
        budget = state.room(turn.max_tokens - state.generated)
        tokens = verify(Trie(), pick, turn.end_ids, budget).tokens
        state.ids.extend(tokens)
        state.generated += len(tokens)
        ended = tokens[-1] in turn.end_ids
        done = ended or len(tokens) == budget
        if done:
            state.turn = None
        else:
            self._running[name] = state
        finish: Literal["stop", "length"] | None = "stop" if ended else "length" if done else None
        return Output(session=name, tokens=tokens, length=len(state.ids), finish=finish)

    def _new_cache(self, rule: Rule) -> SessionCache:
        return self._policy.new_cache(self._model.layout, rule, max_rows=self.facts.max_rows)

    def _abandon(self, sessions: list[str]) -> None:
        """After an error within a step the caches are in doubt: turns end, ids will be forwarded anew."""
        for session in sessions:
            self._sessions[session].turn = None
            self._running.pop(session, None)
        for session in sessions:
            state = self._sessions[session]
            state.cache = self._new_cache(state.cache.rule)


def _pick(sampling: Sampling, position: int, logits: Tensor, best: list[int], node: int, accepted: list[int]) -> int:
    """The token that a node's row gives behind the accepted ones; `best` holds the argmax of each row of `logits`."""
    if sampling.temperature == 0:
        return best[node]
    return choose(logits[node], sampling, position + len(accepted))


def build(options: EngineOptions) -> Engine:
    """Loads the model and resolves every "auto"; raises ModelRefusedError where it cannot be served as asked."""
    began = time.monotonic()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = resolve_device(options.device)
    path = Path(options.model)
    if options.trust_model and AutoConfig.from_pretrained(path).model_type not in SERVED_TYPES:
        self_check(path, device)
    model = Model(path, device, resolve_dtype(options.dtype, device), trust=options.trust_model)
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
    facts = EngineFacts(
        model=options.model,
        model_type=model.config.model_type,
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
        max_sinks=max_sinks,
        session_bytes=session_bytes,
        max_sessions=memory // session_bytes,
        vocab_size=model.config.vocab_size,
        end_ids=model.end_ids,
        attention="SDPA, a call per session" + (", packed linears" if model.packed else ""),
        load_seconds=time.monotonic() - began,
    )
    return Engine(model, facts)


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
