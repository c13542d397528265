"""The scheduler alone, against a worker that is played: what is sent, who runs, that no place is ever lost."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ApiError, unavailable
from server.messages import Close, Failed, Finish, Open, Start
from server.request import ENDED, Request, State
from server.scheduler import Scheduler
from tests.server.peer import PROMPT, Peer, facts, submit


def start(max_waiting: int = 4, places: int = 2, max_running: int = 0) -> tuple[Scheduler, Peer]:
    scheduler = Scheduler(max_waiting, max_running, clock=lambda: 0.0)
    peer = Peer(scheduler, places)
    scheduler.worker_ready(facts(places), peer.inbox.append)
    return scheduler, peer


def refusal(scheduler: Scheduler) -> ApiError:
    with pytest.raises(ApiError) as refused:
        scheduler.reserve()
    return refused.value


def test_a_request_runs_and_gives_its_place_back() -> None:
    scheduler, peer = start(places=1)
    request = submit(scheduler, max_tokens=2)
    assert [type(message) for message in peer.inbox] == [Open, Start]
    peer.take_all()
    peer.step()
    peer.step()
    assert request.state is State.DONE
    assert set(request.times) == {State.RESERVED, State.WAITING, State.RUNNING, State.DONE}
    assert [asyncio.run(request.output()).finish for _ in range(2)] == [None, "length"]
    peer.take_all()
    assert not peer.open


def test_first_come_first_served() -> None:
    scheduler, peer = start(places=1)
    first, second, third = (submit(scheduler, max_tokens=1) for _ in range(3))
    for request in (first, second, third):
        assert request.state is State.RUNNING
        peer.take_all()
        peer.step()
    assert third.state is State.DONE


def test_beyond_the_queue_requests_are_refused_before_their_prompt_is_read() -> None:
    scheduler, _ = start(max_waiting=2, places=2)
    reserved = [scheduler.reserve() for _ in range(4)]
    assert refusal(scheduler).status == 429
    assert refusal(scheduler).retry_after is not None
    scheduler.cancel(reserved[0])
    scheduler.reserve()
    assert refusal(scheduler).status == 429


def test_max_running_bounds_the_places_used() -> None:
    scheduler, _ = start(places=5, max_running=2)
    assert [submit(scheduler).state for _ in range(3)] == [State.RUNNING, State.RUNNING, State.WAITING]


@pytest.mark.parametrize("way", ["cancel", "finish"])
def test_an_early_end_frees_the_place_at_once(way: str) -> None:
    scheduler, peer = start(places=1)
    first, second = submit(scheduler), submit(scheduler)
    peer.take_all()
    peer.step()
    if way == "cancel":
        scheduler.cancel(first)
    else:
        scheduler.finish(first, len(PROMPT) + 1)
    assert second.state is State.RUNNING
    assert [type(message) for message in peer.inbox] == [Finish, Close, Open, Start]
    peer.step()  # the worker has not heard of it yet
    peer.take_all()
    assert first.state is (State.CANCELLED if way == "cancel" else State.DONE)
    assert list(peer.open) == [second.id]


def test_a_request_can_be_cancelled_while_it_waits_or_before() -> None:
    scheduler, peer = start(places=1)
    submit(scheduler)
    waiting, reserved = submit(scheduler), scheduler.reserve()
    scheduler.cancel(waiting)
    scheduler.cancel(reserved)
    scheduler.cancel(reserved)
    assert waiting.state is reserved.state is State.CANCELLED
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 0)
    assert len(peer.inbox) == 2


def test_a_refusal_by_the_worker_puts_the_request_back_in_front() -> None:
    scheduler, peer = start(places=2)
    peer.places = 1
    first, second, third = submit(scheduler, 1), submit(scheduler, 1), submit(scheduler, 1)
    peer.take_all()
    assert (first.state, second.state, third.state) == (State.RUNNING, State.WAITING, State.WAITING)
    for _ in range(3):
        peer.step()
        peer.take_all()
    assert first.state is second.state is third.state is State.DONE


def test_without_any_place_a_request_fails_rather_than_waits_for_ever() -> None:
    scheduler, peer = start(places=1)
    peer.places = 0
    request = submit(scheduler)
    peer.take_all()
    assert request.state is State.FAILED
    with pytest.raises(ApiError):
        asyncio.run(request.output())


def test_a_lost_worker_fails_what_ran_and_keeps_what_waits() -> None:
    scheduler, peer = start(places=1)
    running, waiting = submit(scheduler), submit(scheduler)
    peer.take_all()
    peer.step()
    scheduler.worker_lost("it was killed")
    assert (running.state, waiting.state) == (State.FAILED, State.WAITING)
    assert refusal(scheduler).status == 503

    async def read() -> None:
        assert (await running.output()).tokens == [5]  # what had been generated is delivered first
        with pytest.raises(ApiError) as failed:
            await running.output()
        assert failed.value.status == 500

    asyncio.run(read())
    scheduler.worker_ready(facts(1), peer.inbox.append)
    assert waiting.state is State.RUNNING
    assert scheduler.unready is None


def test_a_second_loss_in_a_row_fails_what_waits() -> None:
    scheduler, _ = start(places=1)
    submit(scheduler)
    waiting, reserved = submit(scheduler), scheduler.reserve()
    scheduler.worker_lost("it was killed")
    scheduler.worker_lost("it cannot be started")
    assert waiting.state is reserved.state is State.FAILED
    with pytest.raises(ApiError) as failed:
        asyncio.run(waiting.admitted())
    assert failed.value.status == 503


def test_a_fault_in_the_worker_fails_the_sessions_it_closed() -> None:
    scheduler, peer = start(places=2)
    first, second, third = (submit(scheduler) for _ in range(3))
    peer.take_all()
    del peer.open[first.id]
    scheduler.receive(Failed([first.id], "RuntimeError: no"))
    assert (first.state, second.state, third.state) == (State.FAILED, State.RUNNING, State.RUNNING)
    peer.take_all()
    assert set(peer.open) == {second.id, third.id}


def test_draining_accepts_nothing_and_lets_all_else_end() -> None:
    scheduler, peer = start(places=1)
    running, waiting = submit(scheduler, 1), submit(scheduler, 1)
    scheduler.drain()
    assert refusal(scheduler).status == 503
    scheduler.worker_lost("it was killed")
    scheduler.worker_ready(facts(1), peer.inbox.append)
    assert scheduler.unready == "it is shutting down"
    assert (running.state, waiting.state) == (State.FAILED, State.RUNNING)
    scheduler.fail_all(unavailable("it is shutting down"))
    assert waiting.state is State.FAILED
    asyncio.run(scheduler.idle())


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=80), st.integers(1, 3))
def test_whatever_happens_no_place_and_no_request_is_lost(events: list[tuple[int, int]], places: int) -> None:
    scheduler, peer = start(max_waiting=3, places=places)
    requests: list[Request] = []
    for kind, which in events:
        request = requests[which % len(requests)] if requests else None
        if kind == 0 and scheduler.num_running + scheduler.num_waiting < places + 3:
            requests.append(submit(scheduler, max_tokens=1 + which))
        elif kind == 1 and request:
            scheduler.cancel(request)
        elif kind == 2 and request:
            scheduler.finish(request, len(PROMPT))
        elif kind == 3 and peer.inbox:
            peer.take()
        elif kind == 4:
            peer.step()
        elif kind == 5:
            peer.take_all()
        elif kind == 6 and which == 0:
            lost = sorted(peer.open)
            peer.open.clear()
            scheduler.receive(Failed(lost, "RuntimeError: no"))
        assert scheduler.num_running <= places
    for _ in range(200):
        peer.take_all()
        peer.step()
    assert all(request.state in ENDED for request in requests)
    assert not peer.open
    assert [submit(scheduler).state for _ in range(places)] == [State.RUNNING] * places
