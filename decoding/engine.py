"""The engine: many sessions, one step at a time. Plan, run, settle. Token ids only."""

import logging
import time
from functools import partial
from typing import Literal, NamedTuple

from cache.policy import POLICIES
from cache.session_cache import SessionCache
from decoding.acceptance import Tally
from decoding.budget import Costs
from decoding.drafting import resolve
from decoding.drafts import ROOT
from decoding.errors import NoPlaceError
from decoding.model import Model
from decoding.options import EngineFacts
from decoding.plan import Share, cuts, plan
from decoding.processors import Processor, check
from decoding.ranked import Ranked, rank
from decoding.recycling import WIDTH, Successors
from decoding.sampling import choose
from decoding.session import Session
from decoding.speculator import Speculator
from decoding.step import Slice, Step
from decoding.strategy import Draft
from decoding.turn import Fault, Output, Sampling, Turn
from decoding.verify import verify

logger = logging.getLogger(__name__)

_FLOOR = 0.02  # a guess that is right less often is not looked at, however cheap rows are


class Work(NamedTuple):
    """What a step does for a session; the draft is None where tokens are read and none is chosen."""

    share: Share
    draft: Draft | None


class Engine:
    """Sessions, each in a place of its own, and the forward that serves all of them.

    Not thread-safe: one caller, who calls `step` while `has_work`.
    """

    def __init__(self, model: Model, facts: EngineFacts, costs: Costs) -> None:
        self.facts = facts
        self.tally = Tally()
        self.costs = costs
        self._model = model
        self._policy = POLICIES[facts.policy]
        self._successors = Successors(facts.vocab_size)
        self._sessions: dict[str, Session] = {}
        self._steps = 0
        self._running: dict[str, Session] = {}  # in order of precedence: whoever was served goes to the end

    def open(self, session: str, sinks: int) -> None:
        """Takes a place. sinks: length of the pinned block. Raises NoPlaceError, or ValueError for what cannot be."""
        if session in self._sessions:
            raise ValueError(f"session {session!r} is open already")
        if len(self._sessions) >= self.facts.max_sessions:
            raise NoPlaceError(f"all {self.facts.max_sessions} places are taken")
        rule = self._policy.rule(sinks, self.facts.capacity, self.facts.block)

        def new_cache() -> SessionCache:
            return self._policy.new_cache(self._model.layout, rule, max_rows=self.facts.max_rows)

        new_speculator = partial(Speculator, successors=self._successors, tally=self.tally)
        self._sessions[session] = Session(new_cache, new_speculator)

    def start(self, turn: Turn) -> None:
        """Begins a turn of an open session that runs none: its tokens are forwarded behind all that is there.

        Raises ValueError for what cannot be, and changes nothing then.
        """
        session = self._sessions[turn.session]
        if turn.min_tokens and len(set(turn.end_ids)) >= self.facts.vocab_size:
            raise ValueError("with min_tokens some token must not be an end token")
        for ids in (turn.tokens, turn.prediction, turn.end_ids):
            if not 0 <= min(ids, default=0) <= max(ids, default=0) < self.facts.vocab_size:
                raise ValueError(f"token ids are between 0 and {self.facts.vocab_size - 1}")
        check(turn.sampling, self.facts.vocab_size)
        drafting = self.facts.drafting if turn.drafting is None else resolve(turn.drafting, self.facts.max_rows)
        session.start(turn, drafting)
        self._running[turn.session] = session

    def finish(self, session: str, keep: int) -> int:
        """Ends the session's running turn, if any, and forgets all tokens from text position `keep` on.

        Returns how many are held.
        """
        state = self._sessions[session]
        if keep < 0:
            raise ValueError(f"cannot keep {keep} tokens")
        self._running.pop(session, None)
        state.forget(keep)
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
        work = self.plan()
        try:
            ranked = self.run(work)
            return self.settle(work, ranked)
        except Exception:
            for share, _ in work:
                self._abandon(share.session)
            raise

    def plan(self) -> list[Work]:
        """The rows of the next step: what must be forwarded, and in the rows that are left what may save steps."""
        waiting = ((name, state.num_waiting()) for name, state in self._running.items())
        shares = plan(waiting, self.facts.max_rows)
        drafts = self._draft([share.session for share in shares if share.decodes], sum(share.rows for share in shares))
        return [Work(share, drafts.get(share.session) or Draft() if share.complete else None) for share in shares]

    def _draft(self, sessions: list[str], certain: int) -> dict[str, Draft]:
        """Drafts of the sessions that decode, in a step of `certain` rows without them."""
        room = self.facts.max_rows - certain
        drafts: dict[str, Draft] = {}
        guessing: list[str] = []
        self._steps += 1
        first = self._steps % max(1, len(sessions))  # where rows are short, each is the first in turn
        for name in sessions[first:] + sessions[:first]:
            state = self._running[name]
            if state.spoilt:
                continue
            if state.speculator.budgeted:
                guessing.append(name)
            elif room > 0:
                drafts[name] = state.draft(room + 1, _FLOOR)
                room -= len(drafts[name]) - 1
        if guessing and room > 0:
            certain = self.facts.max_rows - room
            cached = sum(self._cached(name) for name in sessions) // len(sessions)
            cost = partial(self.costs, cached=cached, sessions=len(sessions))
            floor = max(_FLOOR, cost(certain + 1) / cost(certain) - 1)
            most = min(room, max(8, self.facts.max_rows // len(sessions)))
            guesses = [self._running[name].draft(most + 1, floor) for name in guessing]
            counts = cuts([draft.chances[1:] for draft in guesses], certain, room, cost)
            for name, draft, count in zip(guessing, guesses, counts, strict=True):
                draft.cut(count + 1)
                drafts[name] = draft
        return drafts

    def run(self, work: list[Work]) -> Ranked:
        """Forwards the shares and drafts; what the logits say behind each row of a draft, session by session."""
        slices = []
        for share, draft in work:
            state = self._sessions[share.session]
            first = state.cache.length
            tokens = state.ids[first : first + share.rows]
            if draft is None or len(draft) == 1:
                slices.append(Slice(state.cache, tokens, 0 if draft is None else 1))
            else:
                slices.append(Slice(state.cache, [*tokens, *draft.tokens[1:]], len(draft), draft.ancestors))
        began = time.perf_counter()
        ranked = rank(self._model.forward(Step(slices, self._model.device, self._model.groups)), WIDTH)
        if all(share.decodes for share, _ in work):
            rows = sum(len(draft) for _, draft in work if draft is not None)
            cached = sum(self._cached(share.session) for share, _ in work) // len(work)
            self.costs.observe(rows, cached, len(work), time.perf_counter() - began)
        return ranked

    def settle(self, work: list[Work], ranked: Ranked) -> list[Output | Fault]:
        """Chooses and verifies each session's tokens, keeps their rows, and ends the turns that are done.

        An error with one session is that session's: the others have been forwarded, and go on.
        """
        results: list[Output | Fault] = []
        first = 0
        for share, draft in work:
            state = self._running[share.session]
            if draft is None:
                state.cache.commit(range(share.rows))
                continue
            part = ranked.part(first, first + len(draft))
            first += len(draft)
            try:
                results.extend(self._settle(share, state, draft, part))
            except Exception as error:
                logger.exception("A session failed")
                self._abandon(share.session)
                results.append(Fault(session=share.session, reason=f"{type(error).__name__}: {error}"))
        return results

    def _settle(self, share: Share, state: Session, draft: Draft, ranked: Ranked) -> list[Output]:
        """One session's tokens; none where drafts have spoilt its step, which is then made again without any."""
        turn = state.turn
        assert turn is not None
        if len(draft) > 1 and not ranked.finite[ROOT]:
            state.spoilt = True
            state.renew()
            return []
        pending, room = state.ids[-1], state.room()
        pick = partial(_pick, turn.sampling, state.processor, len(state.ids), ranked)
        verified = verify(draft, pick, turn.end_ids, min(room, state.most()), chain=state.cache.layout.exact)
        state.cache.commit(verified.nodes if len(draft) > 1 else range(share.rows))
        state.speculator.learn(draft, verified, ranked.best, ranked.likeliest, pending)
        tokens = verified.tokens
        state.ids.extend(tokens)
        del self._running[share.session]
        ended = tokens[-1] in turn.end_ids
        done = ended or len(tokens) == room
        if done:
            state.turn = None
        else:
            self._running[share.session] = state
        finish: Literal["stop", "length"] | None = "stop" if ended else "length" if done else None
        return [Output(session=share.session, tokens=tokens, length=len(state.ids), finish=finish)]

    def _cached(self, session: str) -> int:
        """Keys that its next query sees."""
        cache = self._running[session].cache
        return cache.length - cache.rule.evicted(cache.length)

    def _abandon(self, session: str) -> None:
        """After an error within a step the cache is in doubt: the turn ends, ids will be forwarded anew."""
        state = self._sessions[session]
        state.turn = None
        self._running.pop(session, None)
        state.renew()


def _pick(
    sampling: Sampling, processor: Processor | None, position: int, ranked: Ranked, node: int, accepted: list[int]
) -> int:
    """The token that a node's row gives behind the accepted ones."""
    if not ranked.finite[node]:
        raise ArithmeticError("the model's logits are no numbers")
    logits = ranked.logits[node]
    if processor is not None:
        logits = processor.process(logits, accepted)
    elif sampling.temperature == 0:
        return ranked.best[node]
    return choose(logits, sampling, position + len(accepted))
