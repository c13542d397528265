"""The scheduler's other side, played: facts, requests, and a worker without a model."""

from collections import deque

from decoding.options import EngineFacts
from decoding.turn import Drafting, Output, Sampling, Turn
from server.messages import Close, Finish, Finished, NoPlace, Open, Start, Step, ToWorker
from server.request import Request
from server.scheduler import Scheduler

PROMPT = [1, 2, 3]


def facts(max_sessions: int) -> EngineFacts:
    return EngineFacts(
        model="m", model_type="llama", exact="fast", layers="2", device="cpu", dtype="float32", threads=1,
        policy="sinks",
        capacity=64, block=8, max_length=None,
        trained_context=64, max_rows=8, drafting=Drafting(), step_seconds={},
        max_sinks=32, session_bytes=1, max_sessions=max_sessions, vocab_size=9,
        end_ids=[0], attention="none", load_seconds=0.0,
    )  # fmt: skip


class Peer:
    """Plays the worker: holds what it was sent until told to take it, and answers as the real one does."""

    def __init__(self, scheduler: Scheduler, places: int) -> None:
        self.scheduler = scheduler
        self.places = places
        self.inbox: deque[ToWorker] = deque()
        self.open: dict[str, Turn | None] = {}
        self.lengths: dict[str, int] = {}

    def take_all(self) -> None:
        while self.inbox:
            self.take()

    def take(self) -> None:
        match self.inbox.popleft():
            case Open(session) if len(self.open) == self.places:
                self.scheduler.receive(NoPlace(session))
            case Open(session):
                self.open[session] = None
                self.lengths[session] = 0
            case Start(turn) if turn.session in self.open:
                self.open[turn.session] = turn
                self.lengths[turn.session] += len(turn.tokens)
            case Finish(session, keep) if session in self.open:
                self.open[session] = None
                self.lengths[session] = min(self.lengths[session], keep)
                self.scheduler.receive(Finished(session, self.lengths[session]))
            case Close(session):
                self.open.pop(session, None)

    def step(self) -> None:
        outputs = []
        for session, turn in self.open.items():
            if turn is not None:
                self.lengths[session] += 1
                generated = self.lengths[session] - len(turn.tokens)
                ends = generated == turn.max_tokens
                output = Output(
                    session=session, tokens=[5], length=self.lengths[session], finish="length" if ends else None
                )
                outputs.append(output)
                if ends:
                    self.open[session] = None
        self.scheduler.receive(Step(outputs, 0.01))


def submit(scheduler: Scheduler, max_tokens: int = 100) -> Request:
    request = scheduler.reserve()
    turn = Turn(session=request.id, tokens=PROMPT, sampling=Sampling(seed=0), max_tokens=max_tokens, end_ids=[0])
    scheduler.submit(request, turn, 4)
    return request
