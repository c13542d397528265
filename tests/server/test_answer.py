"""An answer as it is read: in time, in silence, to its end."""

import asyncio

import pytest

from decoding.turn import Output
from server.answer import Answer
from server.errors import ApiError, engine_failed
from server.messages import Finish, Step, ToWorker
from server.request import Request, State
from server.scheduler import Scheduler
from server.transcript import Transcript
from tests.server.peer import PROMPT, facts, submit
from tests.tiny import build_tokenizer

TOKENIZER = build_tokenizer().backend_tokenizer


class Rig:
    """A running request, and the answer that is read of it. To be made inside an event loop."""

    def __init__(self, stops: list[str] | None = None, seconds: float = 60) -> None:
        self.sent: list[ToWorker] = []
        self.scheduler = Scheduler(max_waiting=1)
        self.scheduler.worker_ready(facts(1), self.sent.append)
        self.request: Request = submit(self.scheduler)
        self.transcript = Transcript(TOKENIZER, stops or [])
        deadline = asyncio.get_running_loop().time() + seconds
        self.answer = Answer(self.request, self.transcript, self.scheduler, deadline)

    def deliver(self, text: str, end: bool = False) -> None:
        tokens = TOKENIZER.encode(text).ids
        length = self.request.length + len(tokens)
        output = Output(session=self.request.id, tokens=tokens, length=length, finish="length" if end else None)
        self.scheduler.receive(Step([output], 0.01))


def test_each_step_is_a_piece_also_when_the_reader_is_late() -> None:
    async def run() -> list[str]:
        rig = Rig()
        for text, end in (("a", False), ("bc", False), ("d", True)):
            rig.deliver(text, end)
        return [piece async for piece in rig.answer.pieces()]

    assert asyncio.run(run()) == ["a", "bc", "d"]


def test_silence_is_told_and_held_text_is_silence() -> None:
    async def run() -> None:
        rig = Rig(stops=["xy"])
        pieces = rig.answer.pieces(silence=0.02)
        assert await anext(pieces) == ""
        rig.deliver("x")
        assert await anext(pieces) == ""
        rig.deliver("z")
        assert await anext(pieces) == "xz"

    asyncio.run(run())


def test_a_stop_string_ends_the_turn_in_the_worker() -> None:
    async def run() -> None:
        rig = Rig(stops=["END"])
        rig.deliver("say END of")
        assert await rig.answer.text() == "say "
        assert Finish(rig.request.id, keep=len(PROMPT) + 7) in rig.sent
        assert rig.request.state is State.FINISHING

    asyncio.run(run())


def test_the_time_limit_ends_the_answer_as_a_length_limit_does() -> None:
    async def run() -> None:
        rig = Rig(stops=["bee"], seconds=0.05)
        rig.deliver("a b")
        assert await rig.answer.text() == "a b"
        assert rig.transcript.finish_reason == "length"
        assert rig.request.state is State.FINISHING

    asyncio.run(run())


def test_a_failure_comes_behind_what_was_generated() -> None:
    async def run() -> None:
        rig = Rig()
        rig.deliver("a")
        rig.scheduler.fail_all(engine_failed())
        pieces = rig.answer.pieces()
        assert await anext(pieces) == "a"
        with pytest.raises(ApiError):
            await anext(pieces)

    asyncio.run(run())
