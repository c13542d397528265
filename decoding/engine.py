"""The engine: many sessions, one step at a time. Plan, run, settle. Token ids only."""

import logging
import time
from bisect import bisect_right
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from cache.snapshot import Snapshot
from decoding.budget import Costs
from decoding.constraint import Constraint
from decoding.description import Description
from decoding.drafting import resolve
from decoding.drafts import ROOT
from decoding.fingerprint import fingerprint
from decoding.grammar import GrammarError, Grammars
from decoding.heads import Heads
from decoding.model import Model
from decoding.options import HEAD_BYTES, EngineFacts
from decoding.plan import Share, cuts, plan
from decoding.processors import Processor, check
from decoding.ranked import Ranked, rank
from decoding.recycling import WIDTH, Successors
from decoding.sampling import choose
from decoding.scores import score
from decoding.session import Session
from decoding.sessions import Sessions
from decoding.speculator import Speculator
from decoding.step import Slice, Step
from decoding.strategy import Draft
from decoding.tally import Tally, credit
from decoding.turn import Fault, Output, Sampling, Turn
from decoding.verify import verify

logger = logging.getLogger(__name__)

_STRETCH = 2.0  # times as long as without prompts may a step take that others decode in
_SCORED_ROWS = (
    128  # of a prompt in a step, where each is scored: a row of logits takes as much as the vocabulary is large
)
_FLOOR = 0.02  # a guess that is right less often is not looked at, however cheap rows are


class Work(NamedTuple):
    """What a step does for a session; the draft is None where tokens are read and none is chosen."""

    share: Share
    draft: Draft | None


class Engine:
    """Sessions, each in a place of its own or parked, and the forward that serves all of them.

    Not thread-safe: one caller, who calls `step` while `has_work`.
    """

    def __init__(
        self,
        model: Model,
        facts: EngineFacts,
        costs: Costs,
        *,
        head_bytes: int = HEAD_BYTES,
        grammars: Grammars | GrammarError | None = None,
    ) -> None:
        """head_bytes: most memory for pinned blocks that new sessions may begin with; grammars: of the model's
        tokenizer, or why there are none.
        """
        self.facts = facts
        self.tally = Tally()
        self.costs = costs
        self.fingerprint = fingerprint(model, facts)  # the same where caches may be taken over from snapshots
        self._model, self._grammars = model, grammars
        new_speculator = partial(Speculator, successors=Successors(facts.vocab_size))
        self._sessions = Sessions(model, facts, new_speculator, Heads(head_bytes), self.fingerprint)
        self._steps = 0
        self._running: dict[str, Session] = {}  # in order of precedence: whoever was served goes to the end

    def open(
        self, session: str, sinks: int, ids: bytes = b"", snapshot: Path | None = None, namespace: str = ""
    ) -> int:
        """Takes a place. Returns how many of the ids need not be forwarded.

        sinks: length of the pinned block; ids: int32, little endian, all that the session holds already; snapshot: of
        a beginning of them, where there is a valid one; namespace: pinned blocks are shared within it alone.
        Raises NoPlaceError, or ValueError for what cannot be.
        """
        return self._sessions.open(session, sinks, ids, snapshot, namespace)

    def start(self, turn: Turn, keep: int | None = None, snapshot: Path | None = None) -> int:
        """Begins a turn of an open session that runs none: its tokens are forwarded behind all that is there.

        keep: first forgets all tokens from this text position on, as `finish` does; snapshot: used where the cache
        does not reach back so far. Returns how many tokens need not be forwarded, the turn's included.
        Raises ValueError for what cannot be, and changes nothing then. A grammar is compiled while the prompt is read:
        one that cannot be is a `Fault` in place of the first token.
        """
        session = self._sessions[turn.session]
        if turn.min_tokens and len(set(turn.end_ids)) >= self.facts.vocab_size:
            raise ValueError("with min_tokens some token must not be an end token")
        for ids in (turn.tokens, turn.prediction, turn.end_ids):
            if not 0 <= min(ids, default=0) <= max(ids, default=0) < self.facts.vocab_size:
                raise ValueError(f"token ids are between 0 and {self.facts.vocab_size - 1}")
        check(turn.sampling, self.facts.vocab_size)
        drafting = self.facts.drafting if turn.drafting is None else resolve(turn.drafting, self.facts.max_rows)
        session.check(turn, keep)
        constraint = self._constraint(turn)
        if keep is not None:
            session.forget(keep)
        session.start(turn, drafting, constraint)
        if not session.cache.length and not turn.prompt_logprobs:
            self._sessions.warm(session, len(session.ids) - 1, snapshot)  # the last one decides the next token
        self._running[turn.session] = session
        return session.cached

    def _constraint(self, turn: Turn) -> Constraint | None:
        if turn.grammar is None:
            return None
        if not isinstance(self._grammars, Grammars):
            raise ValueError(f"no grammar can be followed: {self._grammars or 'the engine has no tokenizer'}")
        if not turn.end_ids:
            raise ValueError("a turn that follows a grammar needs an end token")
        return Constraint(self._grammars, turn.grammar, turn.end_ids)

    def finish(self, session: str, keep: int, snapshot: Path | None = None) -> int:
        """Ends the session's running turn, if any, and forgets all tokens from text position `keep` on.

        snapshot: used where the cache does not reach back so far, and the session is not parked. Returns how many
        tokens are held.
        """
        state = self._sessions[session]
        if keep < 0:
            raise ValueError(f"cannot keep {keep} tokens")
        self._running.pop(session, None)
        state.forget(keep)
        if not state.cached and not state.parked and snapshot is not None:
            self._sessions.warm(state, len(state.ids), snapshot)
        return len(state.ids)

    def close(self, session: str) -> None:
        """Frees the session's place, or its host memory."""
        self._running.pop(session, None)
        self._sessions.close(session)

    def fork(self, source: str, session: str, keep: int) -> int:
        """A new session in a place of its own with the first `keep` tokens of another, which may be running or parked
        and is left as it is. Returns how many of them need not be forwarded. Raises as `open` does.
        """
        if keep < 0:
            raise ValueError(f"cannot keep {keep} tokens")
        return self._sessions.fork(source, session, keep)

    def park(self, session: str) -> int:
        """Frees the place of a session that runs no turn, and keeps it in host memory: the bytes that it takes there.

        It can be finished, forked, described, snapshotted and closed there. Raises ValueError where it cannot be.
        """
        return self._sessions.park(session)

    def resume(self, session: str) -> None:
        """Gives a parked session a place again. Raises NoPlaceError, or ValueError where it is not parked."""
        self._sessions.resume(session)

    def snapshot(self, session: str) -> Snapshot:
        """What is cached of a session and its ids, between two steps; its `write` may run in another thread."""
        return self._sessions.snapshot(session)

    def prompt(self, session: str) -> tuple[int, int]:
        """Of a turn that has just begun: keys of the session that it uses again, and tokens that are to be read."""
        state = self._sessions[session]
        forwarded = state.num_waiting()
        evicted = state.rule.evicted(len(state.ids) - forwarded) if state.limit is None else 0
        return len(state.ids) - forwarded - evicted, forwarded

    def describe(self, session: str) -> Description:
        """A session in figures."""
        return self._sessions.describe(session)

    @property
    def num_placed(self) -> int:
        """Sessions that hold one of the places."""
        return self._sessions.num_placed

    @property
    def num_parked(self) -> int:
        """Sessions that are in host memory and hold none."""
        return self._sessions.num_parked

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
        shares = [self._within(share) for share in plan(waiting, self.facts.max_rows, self._prompt_rows)]
        drafts = self._draft([share.session for share in shares if share.decodes], sum(share.rows for share in shares))
        return [Work(share, drafts.get(share.session) or Draft() if share.complete else None) for share in shares]

    def _within(self, share: Share) -> Share:
        """As many rows of it as can be told of."""
        most = _SCORED_ROWS if self._running[share.session].scores_prompt else share.rows
        return share if share.rows <= most else Share(share.session, most, complete=False)

    def _prompt_rows(self, decoding: int) -> int:
        """Rows of prompts that make a step of so many sessions that decode at most `_STRETCH` times as long."""
        cached = self.facts.capacity  # what streams see before long
        longest = _STRETCH * self.costs(decoding, cached, decoding)
        rows = range(1, self.facts.max_rows - decoding + 1)
        return bisect_right(rows, longest, key=lambda more: self.costs(decoding + more, cached, decoding))

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
                slices.append(Slice(state.cache, tokens, _num_logits(state, share, draft)))
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
            part = ranked.part(first, first + _num_logits(state, share, draft))
            first += len(part.best)
            try:
                if state.scores_prompt:
                    state.score_prompt(part.logits)
                if draft is None:
                    state.cache.commit(range(share.rows))
                else:
                    results.extend(self._settle(share, state, draft, part.last(len(draft))))
                self._sessions.keep_head(state)
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
        came = credit(draft, verified, state.speculator.sources)
        if came is not None:
            self.tally.add(came)
        tokens = verified.tokens
        prompt_scores = state.take_prompt_scores()
        state.ids.extend(tokens)
        del self._running[share.session]
        ended = tokens[-1] in turn.end_ids
        done = ended or len(tokens) == room
        if done:
            state.turn = None
        else:
            self._running[share.session] = state
        finish: Literal["stop", "length"] | None = "stop" if ended else "length" if done else None
        scores = [] if turn.logprobs is None else score(ranked.logits[verified.nodes], tokens, turn.logprobs)
        return [
            Output(
                session=share.session,
                tokens=tokens,
                length=len(state.ids),
                finish=finish,
                scores=scores,
                prompt_scores=prompt_scores,
                credit=came,
            )
        ]

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


def _num_logits(state: Session, share: Share, draft: Draft | None) -> int:
    """Rows of a share, the last ones, whose logits are wanted."""
    if state.scores_prompt:
        return share.rows
    return 0 if draft is None else len(draft)


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
