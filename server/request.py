"""One request on its way through the scheduler."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from decoding.turn import Output, Scored, Turn
from server.errors import ApiError


class State(Enum):
    RESERVED = "reserved"  # counted, its prompt not yet known
    WAITING = "waiting"  # for a place in the worker
    RUNNING = "running"  # has a place
    FINISHING = "finishing"  # has all it needs; the worker has yet to acknowledge that it stopped
    CANCELLING = "cancelling"  # the same for a request that nobody waits for
    DONE = "done"  # all outputs are here
    CANCELLED = "cancelled"  # nobody waits for it any more
    FAILED = "failed"  # `error` says why


LEAVING = {State.FINISHING: State.DONE, State.CANCELLING: State.CANCELLED}
ENDED = frozenset({State.DONE, State.CANCELLED, State.FAILED})


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """How the worker comes to hold the session of a request, where it does not yet, and where the turn begins."""

    sinks: int
    namespace: str = ""
    ids: bytes | None = b""  # all of the session so far, as int32; None: the worker holds them already
    snapshot: str | None = None  # file that may hold its cache
    keep: int = 0  # so many ids of it stay


class DisplacedError(Exception):
    """The worker no longer holds what it held when the request was submitted: submit it with all ids."""


@dataclass(eq=False)
class Request:
    """Made by `Scheduler.reserve` and changed by the scheduler alone; one task reads its outputs."""

    id: str
    number: int = 0  # in order of arrival
    digest: bytes = b""  # of key and body
    state: State = State.RESERVED
    times: dict[State, float] = field(default_factory=dict)  # when each state was last entered
    priority: int = 0  # lower is served first
    turn: Turn | None = None
    placement: Placement | None = None
    length: int = 0  # tokens of the session that have been seen here
    cached: int = 0  # of its prompt, what the worker need not forward
    forwarded: int = 0
    error: ApiError | None = None
    output_times: tuple[float, float] = (0.0, 0.0)  # of the first output and the last one
    prompt_scores: list[Scored] = field(default_factory=list)  # where its turn asks for them, with the first output

    _outputs: deque[Output] = field(default_factory=deque)
    _unread: int = 0  # tokens in them
    _displaced: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _admitted: asyncio.Event = field(default_factory=asyncio.Event)
    _begun: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def session(self) -> str:
        """Of a request that was submitted."""
        assert self.turn is not None
        return self.turn.session

    def move(self, state: State, now: float) -> None:
        """The one way from state to state."""
        assert self.state not in ENDED, f"{self.id} is {self.state.value}, which no request leaves"
        self._displaced = state is State.RESERVED
        self.state = state
        self.times[state] = now
        if state is State.WAITING:
            self._admitted.clear()
        else:
            self._admitted.set()
            self._news.set()
        if state in ENDED:
            self._begun.set()
            self._ended.set()

    def deliver(self, output: Output, now: float) -> int:
        """Never waits. Returns how many tokens the reader has not taken yet."""
        self.length = output.length
        self.output_times = (self.output_times[0] or now, now)
        self.prompt_scores += output.prompt_scores
        self._outputs.append(output)
        self._unread += len(output.tokens)
        self._begun.set()
        self._news.set()
        return self._unread

    async def admitted(self) -> None:
        """Returns when the request has left the queue. Raises `ApiError` where it failed there, or `DisplacedError`."""
        await self._admitted.wait()
        if self._displaced:
            raise DisplacedError
        if self.error is not None and State.RUNNING not in self.times:
            raise self.error

    async def output(self) -> Output:
        """The next output, in order, up to one with a `finish`. Raises `ApiError` where there will be none."""
        while not self._outputs:
            if self.error is not None:
                raise self.error
            self._news.clear()
            await self._news.wait()
        output = self._outputs.popleft()
        self._unread -= len(output.tokens)
        return output

    async def prompt_read(self) -> None:
        """Returns with its first output, or its end."""
        await self._begun.wait()

    async def ended(self) -> None:
        """Returns when the worker does nothing more for it."""
        await self._ended.wait()
