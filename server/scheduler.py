"""Who runs, who waits, who is refused. Knows no text, no HTTP, no model: only requests and the worker's messages."""

import asyncio
import logging
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from decoding.options import EngineFacts
from decoding.turn import Output, Turn
from server.errors import ApiError, engine_failed, queue_full, request_rejected, slow_reader, unavailable
from server.messages import (
    Failed,
    Finish,
    Finished,
    NoPlace,
    Parked,
    Report,
    Save,
    Saved,
    Start,
    Started,
    Step,
    ToWorker,
)
from server.request import LEAVING, Placement, Request, State
from server.seats import Seats
from server.suspects import Suspects

logger = logging.getLogger(__name__)

_NO_SEATS = Seats(0, 0, lambda message: None)


@dataclass
class Pace:
    """What the worker has told of its steps."""

    steps: int = 0
    seconds: float = 0.0  # in them
    idle_seconds: float = 0.0  # between them, with work at hand

    def add(self, step: Step) -> None:
        self.steps += 1
        self.seconds += step.seconds
        self.idle_seconds += step.idle_seconds

    def __str__(self) -> str:
        idle = self.idle_seconds / max(self.seconds + self.idle_seconds, 1e-9)
        return (
            f"{self.steps:,} steps took {self.seconds:.1f} s, and {idle:.1%} of the time with work passed between them"
        )


class Scheduler:
    """Lowest priority number first, then first come, first served, into the places that the worker has.

    Sessions outlive their requests: one whose place is needed is parked in the worker's host memory, and forgotten
    where that is full; whoever keeps sessions can bring it back. A session has one request at a time.

    Not one method waits, so each sees and leaves a consistent state: the API's side calls `reserve`, `submit`, `finish`
    and `cancel`, the worker's side `worker_ready`, `worker_lost` and `receive`.
    """

    def __init__(
        self,
        max_waiting: int,
        max_running: int = 0,
        max_unread: int = 2**31,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_waiting = max_waiting
        self._max_running = max_running  # 0: as many as the worker has places for
        self._max_unread = max_unread  # tokens that a reader may lag behind
        self._clock = clock
        self._requests: dict[str, Request] = {}  # all that have not ended
        self._by_session: dict[str, Request] = {}  # those of them that were submitted
        self._waiting: list[Request] = []  # in order of precedence
        self._number = 0
        self._seats = _NO_SEATS
        self._suspects = Suspects(clock)
        self._send: Callable[[ToWorker], None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.unready: str | None = "the model is loading"  # why nothing is accepted; None: ready
        self._draining = False
        self.pace = Pace()
        # told of sessions: that a snapshot is written (None: is not), that one was parked
        self.on_saved: Callable[[str, int | None], None] = lambda session, length: None
        self.on_parked: Callable[[str], None] = lambda session: None
        self.on_lost: Callable[[], None] = lambda: None  # told that the worker is gone, and all that it held

    # The API's side

    def reserve(self, digest: bytes = b"") -> Request:
        """Count a new request in, before any work is done for it. Raises `ApiError` where it cannot be served soon.

        digest: of its key and body, the same for one that is sent again.
        """
        self.check_room()
        if digest and self._suspects.refuses(digest):
            raise request_rejected()
        self._number += 1
        request = Request(uuid4().hex, self._number, digest)
        request.times[State.RESERVED] = self._clock()
        self._requests[request.id] = request
        self._idle.clear()
        return request

    def check_room(self) -> None:
        """Raises `ApiError` where no request is accepted at the moment."""
        if self.unready is not None:
            raise unavailable(self.unready)
        if len(self._requests) - self._num_leaving >= self.most:
            raise queue_full()

    def submit(self, request: Request, turn: Turn, placement: Placement, priority: int = 0) -> None:
        """Put a reserved request into the queue. It may have failed since, and stays so.

        No other request of the turn's session may be under way.
        """
        if request.state is State.RESERVED:
            assert turn.session not in self._by_session
            request.turn, request.placement, request.priority = turn, placement, priority
            request.length = placement.keep + len(turn.tokens)
            self._by_session[turn.session] = request
            self._wait(request)
            self._admit()

    def finish(self, request: Request, keep: int) -> None:
        """End a running turn early, its session rolled back to `keep` tokens. No effect on a request that has ended."""
        if request.state is State.RUNNING:
            self._leave(request, State.FINISHING, keep)

    def cancel(self, request: Request) -> None:
        """Forget a request in whatever state; its session is left as it was before.

        Others can run in its stead from here on.
        """
        if request.state is State.RUNNING:
            assert request.placement is not None
            self._leave(request, State.CANCELLING, request.placement.keep)
        elif request.state in (State.RESERVED, State.WAITING):
            self._end(request, State.CANCELLED)

    def holds(self, session: str) -> bool:
        """Whether the worker holds the session now. While a request for it waits it stays, unless the worker dies."""
        return session in self._seats

    def where(self, session: str) -> tuple[Literal["device", "host"], int] | None:
        """As `Seats.where`."""
        return self._seats.where(session)

    def save(self, session: str, path: str) -> bool:
        """Have a session that is idle written to a file, of which `on_saved` will tell. Or False: it is not here."""
        if self._send is None or not self._seats.is_idle(session):
            return False
        self._send(Save(session, path))
        return True

    def copy(self, session: str, source: str, keep: int) -> None:
        """Have the worker hold a copy of the first tokens of another session, as it is now, if there is room for it."""
        if self._send is not None:
            self._seats.copy(session, source, keep)

    def drop(self, session: str) -> None:
        """Have the worker forget a session that has no request."""
        if session in self._seats:
            self._seats.forget(session)
            self._admit()

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
                self._seats.forget(request.session)
            self._fail(request, error)

    @property
    def has_worker(self) -> bool:
        """Whether there is one that is ready."""
        return self._send is not None

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
        self._seats = Seats(facts.max_sessions, facts.host_bytes, send)
        if not self._draining:
            self.unready = None
        self._admit()

    def worker_lost(self, reason: str) -> None:
        """All that ran has failed. What waits goes on waiting for the next worker, unless that one is lost already."""
        was_ready, self._send = self._send is not None, None
        self._seats = _NO_SEATS
        self.on_lost()
        if not self._draining:
            self.unready = reason
        for request in list(self._requests.values()):
            if request.state not in (State.RESERVED, State.WAITING):
                if request.digest and request.state is State.RUNNING:
                    self._suspects.blame(request.digest)
                self._fail(request, engine_failed())
            elif not was_ready:
                self._fail(request, unavailable(reason))

    def receive(self, message: Report) -> None:
        """All messages of a worker that is ready, in the order in which it sent them."""
        match message:
            case Step(outputs):
                self.pace.add(message)
                for output in outputs:
                    self._deliver(output)
            case Failed(sessions, reason):
                logger.error("The worker failed: %s", reason)
                self._lose(sessions)
            case Parked(session, num_bytes):
                self.on_parked(session)
                self._seats.parked(session, num_bytes, self._held)
            case Saved(session, length):
                self.on_saved(session, length)
            case NoPlace(session):
                self._seats.refuse(session)
                self._requeue(session)
            case Started() | Finished():
                self._acknowledge(message)
        self._admit()

    # Within

    @property
    def most(self) -> int:
        """Requests that can be under way at once, those that wait among them."""
        return self._max_waiting + self._most_running

    @property
    def _most_running(self) -> int:
        return min(self._seats.places, self._max_running or self._seats.places)

    @property
    def _num_leaving(self) -> int:
        return sum(request.state in LEAVING for request in self._requests.values())

    def _wait(self, request: Request) -> None:
        request.move(State.WAITING, self._clock())
        insort(self._waiting, request, key=lambda waiting: (waiting.priority, waiting.number))

    @property
    def _held(self) -> set[str]:
        """Sessions that are waited for."""
        return {request.session for request in self._waiting}

    def _admit(self) -> None:
        while self._send is not None and self._waiting and self.num_running < self._most_running:
            request = self._waiting[0]
            if not self._seats.make_room(request.session):
                return
            self._waiting.pop(0)
            if self._is_displaced(request):
                self._displace(request)
                continue
            assert request.turn is not None
            assert request.placement is not None
            self._seats.enter(request.session, request.placement)
            self._send(Start(request.turn, request.placement.keep, request.placement.snapshot))
            request.move(State.RUNNING, self._clock())

    def _is_displaced(self, request: Request) -> bool:
        """Whether it counts on what the worker no longer holds."""
        placement = request.placement
        assert placement is not None
        return placement.ids is None and not self.holds(request.session)

    def _displace(self, request: Request) -> None:
        del self._by_session[request.session]
        if State.RUNNING in request.times:  # its reader waits for output, and for nothing else
            self._fail(request, engine_failed())
        else:
            request.move(State.RESERVED, self._clock())

    def _acknowledge(self, message: Started | Finished) -> None:
        request = self._by_session.get(message.session)
        if request is None:
            return
        if isinstance(message, Started):
            request.cached, request.forwarded = message.cached, message.forwarded
        else:
            self._end(request, LEAVING[request.state])

    def _deliver(self, output: Output) -> None:
        request = self._by_session.get(output.session)
        if request is None or request.state is not State.RUNNING:
            return  # generated before the worker learnt that nobody wants it
        if request.deliver(output, self._clock()) > self._max_unread:
            request.error = slow_reader()
            self.cancel(request)
        elif output.finish is not None:
            self._seats.rest(request.session)
            self._end(request, State.DONE)

    def _leave(self, request: Request, state: State, keep: int) -> None:
        assert self._send is not None
        self._send(Finish(request.session, keep))
        if keep:
            self._seats.rest(request.session)
        else:
            self._seats.forget(request.session)
        request.move(state, self._clock())
        self._admit()

    def _lose(self, sessions: list[str]) -> None:
        """The worker has closed them."""
        for session in sessions:
            self._seats.lose(session)
            if request := self._by_session.get(session):
                self._fail(request, engine_failed())

    def _requeue(self, session: str) -> None:
        """There was no place for it: wait until one is given back."""
        request = self._by_session.get(session)
        if request is None:
            return
        if request.state in LEAVING:
            self._end(request, LEAVING[request.state])
        elif not self._seats.places:
            self._fail(request, unavailable("it has no memory for another session"))
        else:
            self._wait(request)

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
        if request.turn is not None and self._by_session.get(request.session) is request:
            del self._by_session[request.session]
        if not self._requests:
            self._idle.set()
