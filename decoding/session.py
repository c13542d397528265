"""One conversation in the engine."""

from array import array
from collections.abc import Callable, MutableSequence

from cache.session_cache import SessionCache
from cache.slab import UndoExhaustedError
from decoding.drafting import MAX_ROWS
from decoding.processors import Processor, processor_for
from decoding.speculator import Speculator
from decoding.strategy import Draft, Limits
from decoding.turn import Drafting, Turn


class Session:
    """All ids of a conversation; those from cache.length on are still to be forwarded.

    After a step of a running turn that is one: the pending token, which was chosen last and is not cached yet.
    """

    def __init__(
        self, new_cache: Callable[[], SessionCache], new_speculator: Callable[[MutableSequence[int]], Speculator]
    ) -> None:
        self._new_cache = new_cache
        self.cache = new_cache()
        self.ids = array("i")
        self.speculator = new_speculator(self.ids)
        self.turn: Turn | None = None
        self.processor: Processor | None = None  # of the running turn, where it changes logits
        self.first = 0  # text position of the running turn's first generated token
        self.spoilt = False  # whether a draft of this turn had keys that are no numbers: masking does not hide those

    def start(self, turn: Turn, drafting: Drafting) -> None:
        """Raises ValueError for what cannot be, and changes nothing then. drafting: resolved sizes."""
        if self.turn is not None:
            raise ValueError(f"session {turn.session!r} runs a turn already")
        if not turn.tokens or turn.max_tokens < 1:
            raise ValueError("a turn forwards at least one token and generates at least one")
        length, limit = len(self.ids) + len(turn.tokens), self.cache.limit
        if limit is not None and length > limit:
            raise ValueError(f"{length} tokens do not fit into a cache of {limit} that evicts none")
        self.ids.extend(turn.tokens)
        self.turn, self.first, self.spoilt = turn, length, False
        self.processor = processor_for(turn, self.cache.rule, self.ids)
        self.speculator.begin(turn, drafting)

    def num_waiting(self) -> int:
        """Tokens to forward before the next one can be chosen."""
        return self.cache.waiting(len(self.ids))

    def room(self) -> int:
        """How many tokens the running turn can still generate: the last one need not be forwarded."""
        assert self.turn is not None
        left = self.turn.max_tokens - (len(self.ids) - self.first)
        limit = self.cache.limit
        return left if limit is None else min(left, limit + 1 - len(self.ids))

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
        try:
            self.cache.roll_back(min(len(self.ids), self.cache.length))
        except UndoExhaustedError:
            self.renew()

    def renew(self) -> None:
        """The cache is in doubt: all ids will be forwarded anew."""
        self.cache = self._new_cache()
