"""How a turn comes to run: it waits in the queue, in time, until the worker has a place for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from decoding.turn import Turn
from server.errors import timed_out
from server.request import DisplacedError, Placement, Request
from server.scheduler import Scheduler


@asynccontextmanager
async def in_time(limit: float, seconds: float) -> AsyncIterator[None]:
    """limit: in the event loop's time. Raises `ApiError` behind it, which tells of so many seconds."""
    try:
        async with asyncio.timeout_at(limit):
            yield
    except TimeoutError:
        raise timed_out(seconds) from None


async def place(
    scheduler: Scheduler,
    request: Request,
    turn: Turn,
    placement: Callable[[bool], Awaitable[Placement]],
    priority: int,
) -> None:
    """Returns when the turn runs. placement: of its session, by whether the worker holds that. Raises `ApiError`."""
    held = scheduler.holds(turn.session)
    while True:
        scheduler.submit(request, turn, await placement(held), priority)
        try:
            await request.admitted()
        except DisplacedError:
            held = False
        else:
            return
