"""Work of seconds that no stream should wait for: in a thread of its own, one piece after the other."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from server.errors import queue_full

T = TypeVar("T")


class Aside:
    """Takes so many pieces at once and no more, so that others' long texts never pile up."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_pending = 0
        self._thread = ThreadPoolExecutor(1, "aside")

    async def run(self, work: Callable[[], T]) -> T:
        """Its result. What is cancelled before it has begun never begins. Raises `ApiError` where too much waits."""
        if self._num_pending > self._most:
            raise queue_full()
        self._num_pending += 1
        loop = asyncio.get_running_loop()
        future = self._thread.submit(work)
        future.add_done_callback(lambda _: self._end_soon(loop))
        return await asyncio.wrap_future(future)

    def _end_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in either thread."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._num_pending -= 1
