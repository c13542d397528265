"""The worker's loop around the real engine, and how it takes faults."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from decoding import engine, sampling
from decoding.build import build
from decoding.options import EngineOptions
from decoding.turn import Sampling, Turn
from server.messages import (
    Close,
    Failed,
    Finish,
    Finished,
    Fork,
    FromWorker,
    NoPlace,
    Open,
    Park,
    Parked,
    Resume,
    Save,
    Saved,
    Start,
    Started,
    Step,
)
from server.worker import MAX_FAILED_STEPS, Worker

Rig = tuple[Worker, engine.Engine, list[FromWorker]]


@pytest.fixture
def rig(tiny_model: Path) -> Rig:
    """A worker with one place, its engine, and what it has sent, but that turns have started."""
    facts = build(EngineOptions(model=str(tiny_model), dtype="float32", capacity=64, block=8)).facts
    options = EngineOptions(
        model=str(tiny_model), dtype="float32", capacity=64, block=8, memory_bytes=facts.session_bytes * 2
    )
    sent: list[FromWorker] = []
    built = build(options)

    def send(message: FromWorker) -> None:
        if not isinstance(message, Started):
            sent.append(message)

    return Worker(built, send), built, sent


def turn(session: str, max_tokens: int = 100) -> Turn:
    return Turn(session=session, tokens=[1, 7, 8, 9, 10], sampling=Sampling(seed=1), max_tokens=max_tokens, end_ids=[])


def begin(worker: Worker, *sessions: str) -> None:
    for session in sessions:
        worker.apply(Open(session, 4))
        worker.apply(Start(turn(session)))


def test_a_turn_runs_to_its_length_in_one_message_a_step(rig: Rig) -> None:
    worker, _, sent = rig
    worker.apply(Open("a", 4))
    worker.apply(Start(turn("a", max_tokens=3)))
    while worker.has_work:
        worker.step()
    outputs = [output for message in sent if isinstance(message, Step) for output in message.outputs]
    assert [output.finish for output in outputs] == [None, None, "length"]
    assert outputs[-1].length == 8


def test_finish_is_acknowledged_with_what_is_left(rig: Rig) -> None:
    worker, _, sent = rig
    begin(worker, "a")
    worker.step()
    worker.step()
    worker.apply(Finish("a", 6))
    assert sent[-1] == Finished("a", 6)
    assert not worker.has_work


def test_without_a_place_a_session_is_refused_and_what_is_said_of_it_dropped(rig: Rig) -> None:
    worker, built, sent = rig
    names = [f"s{number}" for number in range(built.facts.max_sessions)]
    begin(worker, *names, "late")
    worker.apply(Finish("late", 0))
    worker.apply(Close("late"))
    assert sent == [NoPlace("late")]
    worker.apply(Close(names[0]))
    begin(worker, "later")
    worker.step()
    assert isinstance(sent[-1], Step)


def test_a_fault_in_a_step_fails_the_sessions_and_the_worker_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, built, sent = rig

    def fail(*_: object) -> None:
        raise RuntimeError("a kernel\nfailed")

    begin(worker, "a")
    with monkeypatch.context() as patch:
        patch.setattr(built, "run", fail)
        worker.step()
    assert sent == [Failed(["a"], "RuntimeError: a kernel failed")]
    worker.apply(Close("a"))
    begin(worker, "b")
    worker.step()
    assert isinstance(sent[-1], Step)


def test_a_session_that_fails_takes_none_with_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, built, sent = rig
    begin(worker, "a", "b")

    def fail_once(*arguments: Any) -> int:
        monkeypatch.setattr("decoding.engine.choose", sampling.choose)
        raise RuntimeError("no token")

    monkeypatch.setattr("decoding.engine.choose", fail_once)
    worker.step()
    step, failed = sent
    assert isinstance(step, Step)
    assert [output.session for output in step.outputs] == ["b"]
    assert failed == Failed(["a"], "RuntimeError: no token")
    worker.step()
    assert isinstance(sent[-1], Step)
    assert built.running == {"b"}


def test_a_failed_step_spares_the_sessions_that_were_not_in_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, built, sent = rig
    begin(worker, "a", "b")
    worker.step()
    worker.apply(Finish("b", 3))

    def fail(*_: object) -> None:
        raise RuntimeError("a kernel failed")

    with monkeypatch.context() as patch:
        patch.setattr(built, "run", fail)
        worker.step()
    assert sent[-1] == Failed(["a"], "RuntimeError: a kernel failed")
    worker.apply(Start(turn("b")))
    worker.step()
    assert isinstance(sent[-1], Step)
    assert built.running == {"b"}


def test_a_fault_that_stays_ends_the_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, built, _ = rig

    def fail(*_: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(built, "run", fail)
    for number in range(MAX_FAILED_STEPS - 1):
        begin(worker, f"s{number}")
        worker.step()
    begin(worker, "last")
    with pytest.raises(RuntimeError, match="the device is gone"):
        worker.step()


def test_faults_that_do_not_stay_end_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than end a worker, with a good step between two."""
    worker, built, sent = rig

    def fail(*_: object) -> None:
        raise RuntimeError("a kernel failed")

    for number in range(2 * MAX_FAILED_STEPS):
        begin(worker, f"bad {number}")
        with monkeypatch.context() as patch:
            patch.setattr(built, "run", fail)
            worker.step()
        assert isinstance(sent[-1], Failed)
        begin(worker, f"good {number}")
        worker.step()
        assert isinstance(sent[-1], Step)
        worker.apply(Close(f"good {number}"))


def test_a_turn_that_cannot_start_fails_alone(rig: Rig) -> None:
    worker, _, sent = rig
    begin(worker, "a")
    worker.apply(Start(turn("a")))
    assert isinstance(sent[-1], Failed)
    assert sent[-1].sessions == ["a"]


def test_a_session_outlives_its_turn_is_copied_parked_and_saved(rig: Rig, tmp_path: Path) -> None:
    worker, built, sent = rig
    begin(worker, "a")
    worker.step()
    worker.apply(Finish("a", 5))
    worker.apply(Fork("b", "a", 3))
    worker.apply(Save("a", str(tmp_path / "a")))
    worker.close()
    worker.report_saved()
    assert sent[-2:] == [Finished("a", 5), Saved("a", 5)]
    worker.apply(Park("a"))
    assert isinstance(sent[-1], Parked)
    assert sent[-1].num_bytes > 0
    worker.apply(Resume("a"))
    for session, length in (("a", 5), ("b", 3)):
        assert built.describe(session).tokens == built.describe(session).cached == length
    worker.apply(Close("a"))
    ids = array("i", [1, 7, 8, 9, 10, 11]).tobytes()
    worker.apply(Open("a", 4, ids=ids, snapshot=str(tmp_path / "a")))
    assert (built.describe("a").tokens, built.describe("a").cached) == (6, 5)


def test_a_copy_of_what_is_gone_fails_alone(rig: Rig) -> None:
    worker, _, sent = rig
    begin(worker, "a")
    worker.apply(Fork("b", "nobody", 3))
    assert isinstance(sent[-1], Failed)
    assert sent[-1].sessions == ["b"]
    worker.step()
    assert isinstance(sent[-1], Step)


def test_a_snapshot_that_cannot_be_written_is_told_and_ends_nothing(rig: Rig, tmp_path: Path) -> None:
    worker, _, sent = rig
    begin(worker, "a")
    worker.step()
    worker.apply(Save("a", str(tmp_path / "no" / "such" / "folder")))
    worker.close()
    worker.step()
    assert Saved("a", None) in sent
