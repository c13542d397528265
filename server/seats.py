"""The worker's memory as the API process sees it: which sessions it holds, where, and which leave for others."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from server.messages import Close, Fork, Open, Park, Resume, ToWorker
from server.request import Placement


@dataclass
class Seat:
    """A session that the worker holds: in a place, where it can run, or parked in host memory."""

    parked: bool = False
    num_bytes: int = 0  # of host memory, while it is parked and the worker has told how many
    running: bool = False


class Seats:
    """Tells the worker of each change at once; the pipe's order makes the mirror exact.

    Each session that is touched goes to the end; those that were not for longest leave first.
    """

    def __init__(self, places: int, host_bytes: int, send: Callable[[ToWorker], None]) -> None:
        self.places = places
        self._host_bytes = host_bytes  # for parked sessions
        self._send = send
        self._seats: dict[str, Seat] = {}

    def __contains__(self, session: str) -> bool:
        return session in self._seats

    def is_idle(self, session: str) -> bool:
        """Whether it is held and does not run."""
        seat = self._seats.get(session)
        return seat is not None and not seat.running

    def where(self, session: str) -> tuple[Literal["device", "host"], int] | None:
        """In which memory it is, and how much it takes there as far as it is known (0: a place)."""
        seat = self._seats.get(session)
        return None if seat is None else ("host" if seat.parked else "device", seat.num_bytes)

    def make_room(self, session: str) -> bool:
        """Whether there is a place for the session: its own, a free one, or that of one that is idle."""
        seat = self._seats.get(session)
        if seat is None or seat.parked:
            while self._num_places >= self.places:
                idle = next((name for name, other in self._seats.items() if not other.parked | other.running), None)
                if idle is None:
                    return False
                self._park(idle)
        return True

    def enter(self, session: str, placement: Placement) -> None:
        """Have the session in a place, to run a turn. There must be room."""
        seat = self._seats.get(session)
        if seat is not None:
            if seat.parked:
                self._send(Resume(session))
        else:
            assert placement.ids is not None
            self._send(Open(session, placement.sinks, placement.namespace, placement.ids, placement.snapshot))
        self._seats.pop(session, None)
        self._seats[session] = Seat(running=True)

    def copy(self, session: str, source: str, keep: int) -> None:
        """Have a copy of what is held of another one, idle, where there is room for it."""
        if source in self and session not in self and self.make_room(session) and source in self:
            self._send(Fork(session, source, keep))
            self._seats[session] = Seat()

    def rest(self, session: str) -> None:
        """Its turn is over; it stays. No effect on one that is gone."""
        if seat := self._seats.pop(session, None):
            seat.running = False
            self._seats[session] = seat

    def forget(self, session: str) -> None:
        """It leaves the worker."""
        self._send(Close(session))
        self.lose(session)

    def lose(self, session: str) -> None:
        """It has left the worker already."""
        self._seats.pop(session, None)

    def refuse(self, session: str) -> None:
        """The worker had no place for it: it has fewer than the mirror says."""
        self.places = max(0, self._num_places - 1)
        self.forget(session)

    def parked(self, session: str, num_bytes: int, held: Collection[str]) -> None:
        """It takes so much host memory. Where that is too much, parked ones leave that nobody holds."""
        if seat := self._seats.get(session):
            seat.num_bytes = num_bytes
        over = sum(seat.num_bytes for seat in self._seats.values() if seat.parked) - self._host_bytes
        for name, seat in list(self._seats.items()):
            if over > 0 and seat.parked and name not in held:
                over -= seat.num_bytes
                self.forget(name)

    @property
    def _num_places(self) -> int:
        return sum(not seat.parked for seat in self._seats.values())

    def _park(self, session: str) -> None:
        if self._host_bytes:
            self._send(Park(session))
            self._seats[session].parked = True
        else:
            self.forget(session)
