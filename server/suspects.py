"""Requests that were in flight when the worker died. Who was there twice is refused for a while, not tried for ever."""

import time
from collections.abc import Callable

DEATHS = 2
SECONDS = 600.0
MOST = 10_000  # that are remembered


class Suspects:
    """Requests are known by a digest of key and body, so that a client that sends the same again is found."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaths: dict[bytes, list[float]] = {}  # when each was in flight; who was blamed last comes last

    def blame(self, digest: bytes) -> None:
        """It was in flight at a death of the worker."""
        times = [*self._recent(digest), self._clock()]
        self._deaths.pop(digest, None)
        self._deaths[digest] = times[-DEATHS:]
        while len(self._deaths) > MOST:
            del self._deaths[next(iter(self._deaths))]

    def refuses(self, digest: bytes) -> bool:
        """Whether it is to be refused now."""
        return len(self._recent(digest)) >= DEATHS

    def _recent(self, digest: bytes) -> list[float]:
        return [when for when in self._deaths.get(digest, ()) if self._clock() - when < SECONDS]
