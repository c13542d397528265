"""API keys: who may ask, whose sessions are whose, and how often each may ask."""

import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from hmac import compare_digest
from math import ceil

from server.errors import invalid_api_key, rate_limited

NOBODY = b""  # the namespace where no keys are set


class Keys:
    """All of a server's keys; none of them is kept, only what they hash to."""

    def __init__(
        self, keys: Iterable[str], requests_per_minute: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._digests = [_digest(key) for key in keys]
        self._per_minute = requests_per_minute  # of each key; 0: no limit
        self._clock = clock
        self._allowances: dict[bytes, tuple[float, float]] = {}  # requests left, and when

    def namespace(self, authorization: str) -> bytes:
        """What is the caller's own, from the header. Raises `ApiError` where its key is none of ours."""
        if not self._digests:
            return NOBODY
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        known = [compare_digest(digest, ours) for ours in self._digests]  # all of them, whichever it is
        if scheme.lower() != "bearer" or not any(known):
            raise invalid_api_key(missing=not authorization)
        return digest

    def spend(self, namespace: bytes) -> None:
        """Count a request. Raises `ApiError` where the key has had all of its minute: a bucket that fills steadily."""
        if not self._per_minute:
            return
        now, most = self._clock(), float(self._per_minute)
        left, then = self._allowances.get(namespace, (most, now))
        left = min(most, left + (now - then) * most / 60)
        if left < 1:
            raise rate_limited(self._per_minute, ceil((1 - left) * 60 / most))
        self._allowances[namespace] = (left - 1, now)


def _digest(key: str) -> bytes:
    return blake2b(key.encode(errors="surrogateescape"), digest_size=16, person=b"sinkahead").digest()
