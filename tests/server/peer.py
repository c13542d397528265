"""The scheduler's other side, played: facts, requests, and a worker without a model."""

from collections import deque

from decoding.options import EngineFacts
from decoding.turn import Drafting, Output, Sampling, Turn
from server.messages import (
    Close,
    Failed,
    Finish,
    Finished,
    Fork,
    NoPlace,
    Open,
    Park,
    Parked,
    Resume,
    Start,
    Started,
    Step,
    ToWorker,
)
from server.request import Placement, Request
from server.scheduler import Scheduler

PROMPT = [1, 2, 3]
PARKED_BYTES = 10


def facts(max_sessions: int, host_bytes: int = 0) -> EngineFacts:
    return EngineFacts(
        model="m", model_type="llama", exact="fast", layers="2", device="cpu", dtype="float32", threads=1,
        policy="sinks",
        capacity=64, block=8, max_length=None,
        trained_context=64, max_rows=8, drafting=Drafting(), step_seconds={},
        max_sinks=32, session_bytes=1, max_sessions=max_sessions, host_bytes=host_bytes, vocab_size=9,
        end_ids=[0], attention="none", load_seconds=0.0,
    )  # fmt: skip


class Peer:
    """Plays the worker: holds what it was sent until told to take it, and answers as the real one does.

    Asserts what the real one takes for granted: no session twice, no more in places than there are.
    """

    def __init__(self, scheduler: Scheduler, places: int) -> None:
        self.scheduler = scheduler
        self.places = places
        self.inbox: deque[ToWorker] = deque()
        self.open: dict[str, Turn | None] = {}  # in places
        self.parked: set[str] = set()
        self.lengths: dict[str, int] = {}
        self.starts: dict[str, int] = {}  # lengths at the first generated token

    def take_all(self) -> None:
        while self.inbox:
            self.take()

    def take(self) -> None:  # noqa: C901
        message = self.inbox.popleft()
        match message:
            case Open(session) | Fork(session) | Resume(session) if len(self.open) == self.places:
                self.scheduler.receive(NoPlace(session))
            case Open(session, ids=ids):
                assert session not in self.lengths
                self.open[session] = None
                self.lengths[session] = len(ids) // 4
            case Fork(session, source, keep):
                assert session not in self.lengths
                if source in self.lengths:
                    assert keep <= self.lengths[source]
                    self.open[session] = None
                    self.lengths[session] = keep
                else:
                    self.scheduler.receive(Failed([session], "KeyError"))
            case Resume(session):
                self.parked.remove(session)
                self.open[session] = None
            case Park(session) if session in self.open:
                assert self.open.pop(session) is None
                self.parked.add(session)
                self.scheduler.receive(Parked(session, PARKED_BYTES))
            case Start(turn, keep) if turn.session in self.open:
                assert self.open[turn.session] is None
                assert keep is None or keep <= self.lengths[turn.session]
                self.open[turn.session] = turn
                self.lengths[turn.session] = self.starts[turn.session] = (keep or 0) + len(turn.tokens)
                self.scheduler.receive(Started(turn.session, keep or 0, len(turn.tokens)))
            case Finish(session, keep) if session in self.lengths:
                if session in self.open:
                    self.open[session] = None
                self.lengths[session] = min(self.lengths[session], keep)
                self.scheduler.receive(Finished(session, self.lengths[session]))
            case Close(session):
                self.open.pop(session, None)
                self.parked.discard(session)
                self.lengths.pop(session, None)

    def fail(self, *sessions: str) -> None:
        for session in sessions:
            del self.open[session], self.lengths[session]
        self.scheduler.receive(Failed(list(sessions), "RuntimeError: no"))

    def step(self) -> None:
        outputs = []
        for session, turn in self.open.items():
            if turn is not None:
                self.lengths[session] += 1
                ends = self.lengths[session] - self.starts[session] == turn.max_tokens
                output = Output(
                    session=session, tokens=[5], length=self.lengths[session], finish="length" if ends else None
                )
                outputs.append(output)
                if ends:
                    self.open[session] = None
        self.scheduler.receive(Step(outputs, 0.01))


def submit(
    scheduler: Scheduler,
    max_tokens: int = 100,
    session: str = "",
    priority: int = 0,
    digest: bytes = b"",
    keep: int = 0,
) -> Request:
    """A request of a new session; or of one that goes on from its first `keep` tokens."""
    request = scheduler.reserve(digest)
    session = session or request.id
    turn = Turn(session=session, tokens=PROMPT, sampling=Sampling(seed=0), max_tokens=max_tokens, end_ids=[0])
    ids = None if scheduler.holds(session) else bytes(4 * keep)
    scheduler.submit(request, turn, Placement(sinks=4, ids=ids, keep=keep), priority)
    return request
