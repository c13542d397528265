"""The scheduler alone, against a worker that is played: what is sent, who runs, that no place is ever lost."""

import asyncio
from typing import Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.turn import Sampling, Turn
from server.errors import ApiError, unavailable
from server.messages import Close, Finish, Fork, Open, Park, Resume, Start
from server.request import ENDED, DisplacedError, Placement, Request, State
from server.scheduler import Scheduler
from tests.server.peer import PARKED_BYTES, PROMPT, Peer, facts, submit


def start(
    max_waiting: int = 4, places: int = 2, max_running: int = 0, host_bytes: int = 0, max_unread: int = 1000
) -> tuple[Scheduler, Peer]:
    scheduler = Scheduler(max_waiting, max_running, max_unread, clock=lambda: 0.0)
    peer = Peer(scheduler, places)
    scheduler.worker_ready(facts(places, host_bytes), peer.inbox.append)
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
    assert peer.open == {request.session: None}  # the session stays
    scheduler.drop(request.session)
    peer.take_all()
    assert not peer.lengths


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
    assert list(peer.open) == [second.session]


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
    peer.fail(first.session)
    assert (first.state, second.state, third.state) == (State.FAILED, State.RUNNING, State.RUNNING)
    peer.take_all()
    assert set(peer.open) == {second.session, third.session}


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


def test_a_session_that_goes_on_runs_where_it_is() -> None:
    scheduler, peer = start(places=2)
    first = submit(scheduler, 1, "a")
    peer.take_all()
    peer.step()
    assert first.state is State.DONE
    second = submit(scheduler, 1, "a", keep=first.length)
    assert [type(message) for message in peer.inbox] == [Start]
    peer.take_all()
    assert (second.cached, second.forwarded) == (first.length, len(PROMPT))
    peer.step()
    assert second.length == 2 * first.length


def test_an_idle_session_leaves_its_place_to_others_and_comes_back() -> None:
    scheduler, peer = start(places=1, host_bytes=100)
    first = submit(scheduler, 1, "a")
    peer.take_all()
    peer.step()
    submit(scheduler, 1, "b")
    assert [type(message) for message in peer.inbox] == [Park, Open, Start]
    peer.take_all()
    again = submit(scheduler, 1, "a", keep=first.length)
    assert again.state is State.WAITING  # the other runs
    peer.step()
    assert [type(message) for message in peer.inbox] == [Park, Resume, Start]
    peer.take_all()
    assert again.cached == first.length


def test_host_memory_is_bounded_and_who_was_not_there_for_longest_is_forgotten() -> None:
    scheduler, peer = start(places=1, host_bytes=2 * PARKED_BYTES)
    for session in "abcde":
        submit(scheduler, 1, session)
        peer.take_all()
        peer.step()
        peer.take_all()
    assert (peer.parked, set(peer.open)) == ({"c", "d"}, {"e"})
    assert [scheduler.holds(session) for session in "abcde"] == [False, False, True, True, True]


def test_a_session_that_a_request_waits_for_is_not_forgotten() -> None:
    scheduler, peer = start(places=1, host_bytes=PARKED_BYTES)
    first = submit(scheduler, 1, "a")
    peer.take_all()
    peer.step()
    submit(scheduler, 1, "b")
    peer.take_all()
    waiting = submit(scheduler, 1, "a", keep=first.length)
    submit(scheduler, 1, "c")
    peer.step()
    peer.take_all()
    assert waiting.state is State.RUNNING


def test_a_request_whose_session_is_gone_is_given_back_to_be_submitted_with_all_ids() -> None:
    scheduler, peer = start(places=1)
    first = submit(scheduler, 1, "a")
    peer.take_all()
    peer.step()
    busy = submit(scheduler, 5, "b")  # "a" is forgotten: there is no host memory
    displaced = scheduler.reserve()
    scheduler.submit(
        displaced,
        Turn(session="a", tokens=PROMPT, sampling=Sampling(seed=0), max_tokens=1, end_ids=[0]),
        Placement(sinks=4, ids=None, keep=first.length),
    )
    peer.take_all()
    scheduler.cancel(busy)
    assert displaced.state is State.RESERVED
    with pytest.raises(DisplacedError):
        asyncio.run(displaced.admitted())
    assert displaced.turn is not None
    again = Placement(sinks=4, ids=bytes(4 * first.length), keep=first.length)
    scheduler.submit(displaced, displaced.turn, again)
    asyncio.run(displaced.admitted())
    peer.take_all()
    assert displaced.forwarded == len(PROMPT)


def test_a_copy_leaves_its_source_as_it_was() -> None:
    scheduler, peer = start(places=2)
    first = submit(scheduler, 3, "a")
    peer.take_all()
    peer.step()
    scheduler.copy("b", "a", 2)
    scheduler.copy("c", "nobody", 2)
    copied = scheduler.reserve()
    turn = Turn(session="b", tokens=PROMPT, sampling=Sampling(seed=0), max_tokens=1, end_ids=[0])
    scheduler.submit(copied, turn, Placement(sinks=4, ids=None, keep=2))
    assert [type(message) for message in peer.inbox] == [Fork, Start]
    peer.take_all()
    assert (peer.lengths["a"], peer.lengths["b"]) == (len(PROMPT) + 1, 2 + len(PROMPT))
    peer.step()
    assert (first.state, copied.state) == (State.RUNNING, State.DONE)


def test_no_copy_is_made_where_all_places_run() -> None:
    scheduler, peer = start(places=1, host_bytes=100)
    running = submit(scheduler, 3, "a")
    peer.take_all()
    scheduler.copy("b", "a", 2)
    assert not peer.inbox
    assert not scheduler.holds("b")
    assert running.state is State.RUNNING


def test_cancelled_a_session_is_as_before_its_turn() -> None:
    scheduler, peer = start()
    first = submit(scheduler, 1, "a")
    peer.take_all()
    peer.step()
    second = submit(scheduler, 9, "a", keep=first.length)
    peer.take_all()
    peer.step()
    scheduler.cancel(second)
    peer.take_all()
    assert peer.lengths["a"] == first.length
    third = submit(scheduler, 9, "b")
    peer.take_all()
    scheduler.cancel(third)
    peer.take_all()
    assert "b" not in peer.lengths  # of a session that had no turn before, nothing is left


def test_lower_priorities_first_and_in_order_among_equals() -> None:
    scheduler, peer = start(places=1)
    submit(scheduler, 1)
    late, first, second, urgent = (submit(scheduler, 1, priority=priority) for priority in (5, 0, 0, -1))
    order = []
    for _ in range(4):
        peer.take_all()
        peer.step()
        order.append(next(each for each in (late, first, second, urgent) if each.state is State.RUNNING))
    assert order == [urgent, first, second, late]


def test_who_does_not_read_is_ended() -> None:
    scheduler, peer = start(max_unread=3)
    stuck, reading = submit(scheduler), submit(scheduler)
    for _ in range(5):
        peer.take_all()
        peer.step()
        asyncio.run(reading.output())
    peer.take_all()
    assert (stuck.state, reading.state) == (State.CANCELLED, State.RUNNING)

    async def read_late() -> None:
        for _ in range(4):
            await stuck.output()
        with pytest.raises(ApiError) as ended:
            await stuck.output()
        assert ended.value.body.code == "slow_reader"

    asyncio.run(read_late())


def test_a_request_at_two_deaths_of_the_worker_is_refused_the_third_time() -> None:
    scheduler, peer = start(places=2)
    for number in range(2):
        submit(scheduler, digest=b"bad")
        waiting = [submit(scheduler, digest=b"waits") for _ in range(2)]
        submit(scheduler, digest=f"good {number}".encode())
        scheduler.cancel(waiting[0])
        scheduler.worker_lost("it died")
        scheduler.worker_ready(facts(2), peer.inbox.append)
        for request in waiting:
            scheduler.cancel(request)
    with pytest.raises(ApiError) as refused:
        scheduler.reserve(b"bad")
    assert (refused.value.status, refused.value.body.code) == (400, "request_rejected")
    scheduler.reserve(b"good 0")


class Event(NamedTuple):
    kind: Literal["submit", "cancel", "finish", "take", "step", "take_all", "fail", "drop", "lose", "copy"]
    which: int


events = st.builds(
    Event,
    st.sampled_from(
        ["submit"] * 4 + ["cancel", "finish", "take", "take", "step", "take_all", "fail", "drop", "lose", "copy"]
    ),
    st.integers(0, 9),
)


@given(st.lists(events, max_size=80), st.integers(1, 3), st.sampled_from([0, 15, 1000]))
def test_whatever_happens_no_place_no_session_and_no_request_is_lost(
    happens: list[Event], places: int, host_bytes: int
) -> None:
    rig = Rig(places, host_bytes)
    for event in happens:
        rig.happen(event)
        assert rig.scheduler.num_running <= places
    scheduler, peer = rig.scheduler, rig.peer
    for _ in range(200):
        peer.take_all()
        peer.step()
    assert all(request.state in ENDED or request.state is State.RESERVED for request in rig.requests)
    assert len(peer.open) <= places
    held = {session for session in peer.lengths if scheduler.holds(session)}
    assert held == set(peer.lengths) == set(peer.open) | peer.parked
    assert len(peer.parked) * PARKED_BYTES <= host_bytes
    for request in rig.requests:
        scheduler.cancel(request)  # of no effect, but on those that were displaced
    assert [submit(scheduler).state for _ in range(places)] == [State.RUNNING] * places


class Rig:
    """A scheduler and a worker under random events."""

    def __init__(self, places: int, host_bytes: int) -> None:
        self.places, self.host_bytes = places, host_bytes
        self.scheduler, self.peer = start(max_waiting=3, places=places, host_bytes=host_bytes)
        self.requests: list[Request] = []
        self.lengths: dict[str, int] = {}  # of sessions, when their last turn was done

    def happen(self, event: Event) -> None:
        scheduler, peer, which = self.scheduler, self.peer, event.which
        session = f"s{which % 5}"
        for request in self.requests:
            if request.state is State.DONE:
                self.lengths[request.session] = max(request.length, self.lengths.get(request.session, 0))
        busy = session in {request.session for request in self.requests if request.state not in ENDED and request.turn}
        full = scheduler.num_running + scheduler.num_waiting >= self.places + 3
        if event.kind == "submit" and not full and not busy:
            keep = self.lengths.get(session, 0)
            self.requests.append(submit(scheduler, 1 + which, session, which % 2, keep=keep))
        elif event.kind == "drop" and not busy:
            scheduler.drop(session)
        elif event.kind == "copy" and not busy and not scheduler.holds(session):
            scheduler.copy(session, f"s{which % 3}", 0)
            self.lengths[session] = 0
        elif event.kind == "take" and peer.inbox:
            peer.take()
        elif event.kind in ("cancel", "finish") and self.requests:
            request = self.requests[which % len(self.requests)]
            scheduler.cancel(request) if event.kind == "cancel" else scheduler.finish(request, request.length)
        elif event.kind == "step":
            peer.step()
        elif which == 0:
            self.fail(event)

    def fail(self, event: Event) -> None:
        if event.kind == "fail":
            self.peer.fail(*sorted(self.peer.open))
        elif event.kind == "lose":
            self.scheduler.worker_lost("it died")
            self.peer = Peer(self.scheduler, self.places)
            self.scheduler.worker_ready(facts(self.places, self.host_bytes), self.peer.inbox.append)
        else:
            self.peer.take_all()
