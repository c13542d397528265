"""All sessions of an engine: those in places, which can run, and those parked in host memory."""

import logging
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

from cache.policy import POLICIES
from cache.session_cache import SessionCache
from cache.snapshot import Snapshot, SnapshotError
from decoding.description import Description
from decoding.errors import NoPlaceError
from decoding.heads import Heads
from decoding.model import Model
from decoding.options import EngineFacts
from decoding.session import NewSpeculator, Session

logger = logging.getLogger(__name__)


class Sessions:
    """Moves sessions between tiers, and gives their caches what is known of their ids already."""

    def __init__(
        self, model: Model, facts: EngineFacts, new_speculator: NewSpeculator, heads: Heads, mark: str
    ) -> None:
        """mark: the engine's part of the fingerprint of snapshots."""
        self._layout, self._facts, self._new_speculator = model.layout, facts, new_speculator
        self._policy = POLICIES[facts.policy]
        self._heads, self._mark = heads, mark
        self._sessions: dict[str, Session] = {}

    def __getitem__(self, session: str) -> Session:
        return self._sessions[session]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    @property
    def num_placed(self) -> int:
        """Sessions that hold a place."""
        return len(self._sessions) - self.num_parked

    @property
    def num_parked(self) -> int:
        """Sessions in host memory."""
        return sum(state.parked for state in self._sessions.values())

    def open(self, session: str, sinks: int, ids: bytes, snapshot: Path | None, namespace: str) -> int:
        """See `Engine.open`."""
        self._check_free(session)
        rule = self._policy.rule(sinks, self._facts.capacity, self._facts.block)

        def new_cache() -> SessionCache:
            return self._policy.new_cache(self._layout, rule, max_rows=self._facts.max_rows)

        state = Session(new_cache, self._new_speculator, self._parse(ids), head=sinks, namespace=namespace)
        self.warm(state, len(state.ids), snapshot)
        self._sessions[session] = state
        return state.cached

    def fork(self, source: str, session: str, keep: int) -> int:
        """See `Engine.fork`."""
        self._check_free(session)
        state = self._sessions[source].copy(keep)
        if not state.cache.length:
            self.warm(state, len(state.ids), None)
        self._sessions[session] = state
        return state.cached

    def park(self, session: str) -> int:
        """See `Engine.park`."""
        state = self._sessions[session]
        state.park()
        return state.size

    def resume(self, session: str) -> None:
        """See `Engine.resume`."""
        state = self._sessions[session]
        if not state.parked:
            raise ValueError(f"session {session!r} is not parked")
        self._check_place()
        state.resume()

    def close(self, session: str) -> None:
        """Forgets it, in whichever tier."""
        del self._sessions[session]

    def snapshot(self, session: str) -> Snapshot:
        """See `Engine.snapshot`."""
        state = self._sessions[session]
        packed = state.pack()
        return Snapshot(self._fingerprint(state), _octets(state.ids[: packed.length]), packed)

    def describe(self, session: str) -> Description:
        """See `Engine.describe`."""
        state = self._sessions[session]
        tokens = len(state.ids)
        evicted = state.rule.evicted(tokens) if state.limit is None else 0
        return Description(
            tokens=tokens,
            cached=state.cached,
            live=tokens - evicted,
            evicted=evicted,
            pinned=min(state.rule.sinks, tokens),
            capacity=state.rule.capacity,
            bytes=state.size,
            parked=state.parked,
        )

    def warm(self, state: Session, most: int, snapshot: Path | None) -> None:
        """Fills an empty cache with rows of at most the first `most` ids: from a snapshot, or of the pinned block.

        What is wrong with a snapshot is logged: then there are more ids to forward.
        """
        if snapshot is not None and snapshot.exists():
            try:
                found = Snapshot.read(snapshot, self._fingerprint(state))
                common = _num_common(found.ids, _octets(state.ids[:most]))
                if not common:
                    raise SnapshotError("it is of another text")
                state.restore(found.packed, common)
            except SnapshotError as error:
                logger.warning("Snapshot %s is not used: %s", snapshot, error)
            except ValueError as error:  # further back than it can be rolled back, as a rule
                logger.info("Snapshot %s is not used: %s", snapshot, error)
        if not state.cache.length and state.head <= most:
            packed = self._heads.find(state.namespace, state.head_ids)
            if packed is not None:
                state.restore(packed, packed.length)

    def keep_head(self, state: Session) -> None:
        """To be called after each step of a session: its pinned block is kept for others, once it is forwarded."""
        if state.head_kept or state.cache.length < state.head:
            return
        state.head_kept = True
        if state.head and self._heads.find(state.namespace, state.head_ids) is None:
            packed = state.cache.head(state.head)
            if packed is not None:
                self._heads.add(state.namespace, state.head_ids, packed)

    def _check_free(self, session: str) -> None:
        if session in self._sessions:
            raise ValueError(f"session {session!r} is open already")
        self._check_place()

    def _check_place(self) -> None:
        if self.num_placed >= self._facts.max_sessions:
            raise NoPlaceError(f"all {self._facts.max_sessions} places are taken")

    def _parse(self, octets: bytes) -> "array[int]":
        if len(octets) % 4:
            raise ValueError(f"ids are 4 bytes each, and these are {len(octets)} bytes")
        ids = array("i", octets)
        if sys.byteorder == "big":
            ids.byteswap()
        if not 0 <= min(ids, default=0) <= max(ids, default=0) < self._facts.vocab_size:
            raise ValueError(f"token ids are between 0 and {self._facts.vocab_size - 1}")
        limit = self._facts.max_length
        if limit is not None and len(ids) > limit:
            raise ValueError(f"{len(ids)} tokens do not fit into a cache of {limit} that evicts none")
        return ids

    def _fingerprint(self, state: Session) -> str:
        return f"{self._mark} S={state.rule.sinks}"


def _num_common(first: bytes, second: bytes) -> int:
    """How many ids both begin with."""
    if first.startswith(second) or second.startswith(first):
        return min(len(first), len(second)) // 4
    pairs = zip(memoryview(first).cast("i"), memoryview(second).cast("i"), strict=False)
    return next(index for index, (ours, theirs) in enumerate(pairs) if ours != theirs)


def _octets(ids: "array[int]") -> bytes:
    """int32, little endian. ids: a copy."""
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()
