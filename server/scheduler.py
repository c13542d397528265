"""Who runs, who waits, who is refused. Knows no text, no HTTP, no model: only requests and the worker's messages."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from uuid import uuid4

from decoding.options import EngineFacts
from decoding.turn import Output, Turn
from server.errors import ApiError, engine_failed, queue_full, unavailable
from server.messages import Close, Failed, Finish, Finished, NoPlace, Open, Start, Step, ToWorker
from server.request import LEAVING, Request, State

logger = logging.getLogger(__name__)


class Scheduler:
    """First come, first served, into the places that the worker has.

    Not one method waits, so each sees and leaves a consistent state: the API's side calls `reserve`, `submit`, `finish`
    and `cancel`, the worker's side `worker_ready`, `worker_lost` and `receive`.
    """

    def __init__(self, max_waiting: int, max_running: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_waiting = max_waiting
        self._max_running = max_running  # 0: as many as the worker has places for
        self._clock = clock
        self._requests: dict[str, Request] = {}  # all that have not ended
        self._waiting: deque[Request] = deque()
        self._send: Callable[[ToWorker], None] | None = None
        self._places = 0  # of a worker that is ready
        self._free = 0  # places left, with all counted that has been sent; order in the pipe makes it exact
        self._idle = asyncio.Event()
        self._idle.set()
        self.unready: str | None = "the model is loading"  # why nothing is accepted; None: ready
        self._draining = False

    # The API's side

    def reserve(self) -> Request:
        """Count a new request in, before any work is done for it. Raises `ApiError` where it cannot be served soon."""
        if self.unready is not None:
            raise unavailable(self.unready)
        if self.num_waiting + self.num_running >= self._max_waiting + self._places:
            raise queue_full()
        request = Request(uuid4().hex)
        request.times[State.RESERVED] = self._clock()
        self._requests[request.id] = request
        self._idle.clear()
        return request

    def submit(self, request: Request, turn: Turn, sinks: int) -> None:
        """Put a reserved request into the queue. It may have failed since, and stays so."""
        if request.state is State.RESERVED:
            request.turn, request.sinks, request.length = turn, sinks, len(turn.tokens)
            request.move(State.WAITING, self._clock())
            self._waiting.append(request)
            self._admit()

    def finish(self, request: Request, keep: int) -> None:
        """End a running turn early, its session rolled back to `keep` tokens. No effect on a request that has ended."""
        if request.state is State.RUNNING:
            self._leave(request, State.FINISHING, keep)

    def cancel(self, request: Request) -> None:
        """Forget a request in whatever state; its place is free for the next one from here on."""
        if request.state is State.RUNNING:
            self._leave(request, State.CANCELLING, request.length)
        elif request.state in (State.RESERVED, State.WAITING):
            self._end(request, State.CANCELLED)

    def drain(self) -> None:
        """Accept nothing new from now on."""
        self._draining = True
        self.unready = "it is shutting down"

    async def idle(self) -> None:
        """Returns when no request is left, and the worker has acknowledged each."""
        await self._idle.wait()

    def fail_all(self, error: ApiError) -> None:
        """End all that is left, whatever its state."""
        for request in list(self._requests.values()):
            if request.state is State.RUNNING:
                self._close(request)
            self._fail(request, error)

    @property
    def num_running(self) -> int:
        return sum(request.state is State.RUNNING for request in self._requests.values())

    @property
    def num_waiting(self) -> int:
        return sum(request.state in (State.RESERVED, State.WAITING) for request in self._requests.values())

    @property
    def awaits_worker(self) -> bool:
        """Whether the worker owes an answer: a step of what runs, or that it has ended what was to end."""
        return any(request.state is State.RUNNING or request.state in LEAVING for request in self._requests.values())

    # The worker's side

    def worker_ready(self, facts: EngineFacts, send: Callable[[ToWorker], None]) -> None:
        """`send` must not block; it is called until `worker_lost`."""
        self._send = send
        self._places = self._free = min(facts.max_sessions, self._max_running or facts.max_sessions)
        if not self._draining:
            self.unready = None
        self._admit()

    def worker_lost(self, reason: str) -> None:
        """All that ran has failed. What waits goes on waiting for the next worker, unless that one is lost already."""
        was_ready, self._send = self._send is not None, None
        self._places = self._free = 0
        if not self._draining:
            self.unready = reason
        for request in list(self._requests.values()):
            if request.state not in (State.RESERVED, State.WAITING):
                self._fail(request, engine_failed())
            elif not was_ready:
                self._fail(request, unavailable(reason))

    def receive(self, message: Finished | Failed | NoPlace | Step) -> None:
        """All messages of a worker that is ready, in the order in which it sent them."""
        match message:
            case Step(outputs):
                for output in outputs:
                    self._deliver(output)
            case Finished(session):
                if request := self._requests.get(session):
                    self._end(request, LEAVING[request.state])
            case NoPlace(session):
                if request := self._requests.get(session):
                    self._requeue(request)
            case Failed(sessions, reason):
                logger.error("The worker failed: %s", reason)
                for request in filter(None, map(self._requests.get, sessions)):
                    if request.state is State.RUNNING:
                        self._free += 1  # the worker has closed it
                    self._fail(request, engine_failed())
        self._admit()

    # Within

    def _admit(self) -> None:
        while self._send is not None and self._free > 0 and self._waiting:
            request = self._waiting.popleft()
            assert request.turn is not None
            self._free -= 1
            self._send(Open(request.id, request.sinks))
            self._send(Start(request.turn))
            request.move(State.RUNNING, self._clock())

    def _deliver(self, output: Output) -> None:
        request = self._requests.get(output.session)
        if request is None or request.state is not State.RUNNING:
            return  # generated before the worker learnt that nobody wants it
        request.deliver(output)
        if output.finish is not None:
            self._close(request)
            self._end(request, State.DONE)

    def _leave(self, request: Request, state: State, keep: int) -> None:
        assert self._send is not None
        self._send(Finish(request.id, keep))
        self._close(request)
        request.move(state, self._clock())
        self._admit()

    def _close(self, request: Request) -> None:
        assert self._send is not None
        self._send(Close(request.id))
        self._free += 1

    def _requeue(self, request: Request) -> None:
        """The worker has fewer places than the mirror says: wait until one is given back."""
        self._free = 0
        if request.state in LEAVING:
            self._end(request, LEAVING[request.state])
        elif self.num_running == 1:  # itself: no place will be given back
            self._fail(request, unavailable("it has no memory for another session"))
        else:
            request.move(State.WAITING, self._clock())
            self._waiting.appendleft(request)

    def _fail(self, request: Request, error: ApiError) -> None:
        if request.state in LEAVING:
            self._end(request, LEAVING[request.state])
        else:
            request.error = error
            self._end(request, State.FAILED)

    def _end(self, request: Request, state: State) -> None:
        if request.state is State.WAITING:
            self._waiting.remove(request)
        request.move(state, self._clock())
        del self._requests[request.id]
        if not self._requests:
            self._idle.set()
