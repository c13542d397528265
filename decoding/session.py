"""One conversation in the engine."""

from array import array
from collections.abc import Callable, MutableSequence

from torch import Tensor

from cache.packed import Packed
from cache.session_cache import SessionCache
from cache.slab import UndoExhaustedError
from decoding.constraint import Constraint
from decoding.drafting import MAX_ROWS
from decoding.processors import Processor, processor_for
from decoding.scores import score
from decoding.speculator import Speculator
from decoding.strategy import Draft, Limits
from decoding.turn import Drafting, Scored, Turn

NewSpeculator = Callable[[MutableSequence[int]], Speculator]


class Session:
    """All ids of a conversation; those from cache.length on are still to be forwarded.

    After a step of a running turn that is one: the pending token, which was chosen last and is not cached yet.
    """

    def __init__(
        self,
        new_cache: Callable[[], SessionCache],
        new_speculator: NewSpeculator,
        ids: "array[int]",
        *,
        head: int,
        namespace: str,
    ) -> None:
        """ids: those that it holds from the beginning; head: how many of the first ones are its pinned block, whether
        or not its policy pins any; namespace: of those whose pinned blocks it shares.
        """
        self._new_cache, self._new_speculator = new_cache, new_speculator
        self._cache: SessionCache | None = new_cache()
        self._packed: Packed | None = None  # instead of the cache, where it is parked
        self.rule, self.limit = self._cache.rule, self._cache.limit
        self.ids = ids
        self.head, self.namespace = head, namespace
        self.head_kept = False  # whether its pinned block was offered to others
        self.speculator = new_speculator(self.ids)
        self.turn: Turn | None = None
        self.processor: Processor | None = None  # of the running turn, where it changes logits
        self.first = 0  # text position of the running turn's first generated token
        self._prompt_scores: list[Scored] = []  # of the running turn
        self.spoilt = False  # whether a draft of this turn had keys that are no numbers: masking does not hide those

    @property
    def cache(self) -> SessionCache:
        """Of a session that is not parked."""
        assert self._cache is not None
        return self._cache

    @property
    def parked(self) -> bool:
        """Whether it has no cache, but a packed one."""
        return self._cache is None

    @property
    def cached(self) -> int:
        """Ids that need not be forwarded."""
        return self.cache.length if self._packed is None else self._packed.length

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, but for drafting."""
        cache = sum(t.nbytes for t in self.cache.tensors()) if self._packed is None else self._packed.bytes
        return cache + len(self.ids) * self.ids.itemsize

    @property
    def head_ids(self) -> bytes:
        """Of its pinned block."""
        return self.ids[: self.head].tobytes()

    def check(self, turn: Turn, keep: int | None) -> None:
        """Raises ValueError where it cannot start a turn behind its first `keep` ids; None: all of them."""
        if self.turn is not None:
            raise ValueError(f"session {turn.session!r} runs a turn already")
        if self.parked:
            raise ValueError(f"session {turn.session!r} is parked")
        if keep is not None and keep < 0:
            raise ValueError(f"cannot keep {keep} tokens")
        if not turn.tokens or turn.max_tokens < 1:
            raise ValueError("a turn forwards at least one token and generates at least one")
        length = len(self.ids) if keep is None else min(keep, len(self.ids))
        length += len(turn.tokens)
        if self.limit is not None and length > self.limit:
            raise ValueError(f"{length} tokens do not fit into a cache of {self.limit} that evicts none")

    def start(self, turn: Turn, drafting: Drafting, constraint: Constraint | None = None) -> None:
        """A turn that was checked. drafting: resolved sizes; constraint: of the turn's grammar."""
        self.ids.extend(turn.tokens)
        self.turn, self.first, self.spoilt = turn, len(self.ids), False
        self._prompt_scores = []
        if constraint is not None:
            constraint.begin(self.ids)
        self.processor = processor_for(turn, self.rule, self.ids, constraint)
        self.speculator.begin(turn, drafting, constraint)

    def num_waiting(self) -> int:
        """Tokens to forward before the next one can be chosen."""
        return self.cache.waiting(len(self.ids))

    @property
    def scores_prompt(self) -> bool:
        """Whether the next rows that are forwarded tell of the prompt's tokens."""
        asked = self.turn is not None and self.turn.prompt_logprobs
        return asked and self.cache.length < self.first - 1

    def score_prompt(self, logits: Tensor) -> None:
        """logits: of the next rows [rows, vocabulary], which are not committed yet."""
        assert self.turn is not None
        first = max(1, self.first - len(self.turn.tokens)) + len(self._prompt_scores)  # that has no score yet
        behind = self.cache.length + 1  # what the first row tells of
        stop = min(behind + len(logits), self.first)
        if behind <= first < stop:  # rows are forwarded again where a policy recomputes
            rows = logits[first - behind : stop - behind]
            self._prompt_scores += score(rows, self.ids[first:stop], self.turn.logprobs or 0)

    def take_prompt_scores(self) -> list[Scored]:
        """All of them, once."""
        scores, self._prompt_scores = self._prompt_scores, []
        return scores

    def room(self) -> int:
        """How many tokens the running turn can still generate: the last one need not be forwarded."""
        assert self.turn is not None
        left = self.turn.max_tokens - (len(self.ids) - self.first)
        return left if self.limit is None else min(left, self.limit + 1 - len(self.ids))

    def most(self) -> int:
        """How many tokens one step can generate: as many as have the same keys evicted."""
        return min(self.room(), self.cache.reach())

    def draft(self, rows: int, floor: float) -> Draft:
        """Guesses behind the pending token."""
        return self.speculator.draft(Limits(min(rows, MAX_ROWS), self.most() - 1, floor, self.cache.layout.exact))

    def forget(self, keep: int) -> None:
        """Ends the turn, and all tokens from text position `keep` on are gone.

        A roll-back further than the cache remembers leaves all of them to be forwarded anew.
        """
        self.turn = None
        self.speculator.truncate(keep)
        del self.ids[keep:]
        self.head_kept = self.head_kept and keep >= self.head
        if self._packed is None:
            self._cache = self._rolled_back(self.cache)
        elif self._packed.length > len(self.ids):
            self._packed = self._rolled_back(self._unpacked(self._packed)).pack()

    def renew(self) -> None:
        """The cache is in doubt: all ids will be forwarded anew."""
        self._cache = None  # two of them at once might be one too many
        self._cache = self._new_cache()

    def restore(self, packed: Packed, length: int) -> None:
        """Fills the empty cache with rows of the first `length` ids, which this is a cache of, or of more.

        Raises ValueError, and the cache is empty, where it is of another kind or cannot be rolled back so far.
        """
        try:
            self.cache.unpack(packed)
            self.cache.roll_back(min(length, packed.length))
        except (ValueError, UndoExhaustedError) as error:
            self.renew()
            raise ValueError(str(error)) from error

    def pack(self) -> Packed:
        """What it has cached, as it is now."""
        return self.cache.pack() if self._packed is None else self._packed

    def park(self) -> None:
        """Gives its cache up for a packed one. Raises ValueError where that cannot be."""
        if self.turn is not None:
            raise ValueError("a session that runs a turn cannot be parked")
        if self._packed is not None:
            raise ValueError("it is parked already")
        self._packed, self._cache = self.cache.pack(), None

    def resume(self) -> None:
        """Of a parked one: it has a cache again."""
        assert self._packed is not None
        self._cache, self._packed = self._unpacked(self._packed), None

    def copy(self, keep: int) -> "Session":
        """Another one with the first `keep` of its ids, and a cache of its own. No turn runs in it."""
        other = Session(self._new_cache, self._new_speculator, self.ids[:], head=self.head, namespace=self.namespace)
        other.cache.unpack(self.pack())
        other.forget(keep)
        return other

    def _unpacked(self, packed: Packed) -> SessionCache:
        cache = self._new_cache()
        cache.unpack(packed)
        return cache

    def _rolled_back(self, cache: SessionCache) -> SessionCache:
        """To the ids that are left, at most; an empty one where it cannot go back so far."""
        try:
            cache.roll_back(min(len(self.ids), cache.length))
        except UndoExhaustedError:
            return self._new_cache()
        return cache if cache.length <= len(self.ids) else self._new_cache()
