"""One request on its way through the scheduler."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from decoding.turn import Output, Turn
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


@dataclass(eq=False)
class Request:
    """Made by `Scheduler.reserve` and changed by the scheduler alone; one task reads its outputs."""

    id: str
    state: State = State.RESERVED
    times: dict[State, float] = field(default_factory=dict)  # when each state was last entered
    turn: Turn | None = None
    sinks: int = 0
    length: int = 0  # tokens of the session that have been seen here
    error: ApiError | None = None

    _outputs: deque[Output] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _admitted: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self, state: State, now: float) -> None:
        """The one way from state to state."""
        assert self.state not in ENDED, f"{self.id} is {self.state.value}, which no request leaves"
        self.state = state
        self.times[state] = now
        if state is not State.WAITING:
            self._admitted.set()
            self._news.set()

    def deliver(self, output: Output) -> None:
        """Never waits: what a slow reader leaves here is bounded by the turn's `max_tokens`."""
        self.length = output.length
        self._outputs.append(output)
        self._news.set()

    async def admitted(self) -> None:
        """Returns when the request has left the queue. Raises `ApiError` where it failed there."""
        await self._admitted.wait()
        if self.error is not None and State.RUNNING not in self.times:
            raise self.error

    async def output(self) -> Output:
        """The next output, in order, up to one with a `finish`. Raises `ApiError` where there will be none."""
        while not self._outputs:
            if self.error is not None:
                raise self.error
            self._news.clear()
            await self._news.wait()
        return self._outputs.popleft()
