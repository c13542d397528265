"""Server-sent events: a stream of them as a response."""

from collections.abc import AsyncIterator, Callable, Mapping

from sse_starlette.sse import AppStatus, EventSourceResponse, SendTimeoutError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
SEND_SECONDS = 120.0  # for the network to take an event: who has not read for so long is not there any more


def event(data: bytes, kind: str | None = None) -> bytes:
    head = b"" if kind is None else f"event: {kind}\n".encode()
    return head + b"data: " + data + b"\n\n"


class EventStream(EventSourceResponse):
    """Sends `events` as they are, and calls `release` at the end of whatever kind, also if not one was asked for.

    A client that goes away, or stands still, cancels the iterator. Pings are the iterator's business: the library's own
    come whether the stream is silent or not.
    """

    def __init__(
        self, events: AsyncIterator[bytes], release: Callable[[], None], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(
            events,
            headers=headers,
            media_type="text/event-stream; charset=utf-8",
            sep="\n",
            ping=0,
            send_timeout=SEND_SECONDS,
        )
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            raise ClientDisconnect from None
        finally:
            self._release()


def leave_draining_to_us() -> None:
    """The library would cut all streams half a second after SIGTERM."""
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
