"""One line for each request in the log: what was asked for and what came of it, and nothing of what was said."""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import CLIENT_CLOSED_REQUEST

logger = logging.getLogger(__name__)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
FIGURES = "figures"  # in the request's state: called at the end, it tells more of the answer
SESSION = b"x-session-id"

Figures = Callable[[], dict[str, Any]]


class AccessLog:
    """Logs a request when its answer has ended, or nobody takes it any more."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not logger.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        visit = _Visit()

        async def watch(message: Message) -> None:
            visit.note(message)
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            logger.info("request", extra={"fields": visit.fields(scope)})


class _Visit:
    def __init__(self) -> None:
        self._start = perf_counter()
        self._first = 0.0
        self._status = CLIENT_CLOSED_REQUEST  # unless an answer begins
        self._session = b""
        self._bytes = 0
        self._whole = False

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._first = perf_counter()
            self._status = message["status"]
            self._session = next((value for name, value in message.get("headers", ()) if name == SESSION), b"")
        elif message["type"] == "http.response.body":
            self._bytes += len(message.get("body", b""))
            self._whole = not message.get("more_body", False)

    def fields(self, scope: Scope) -> dict[str, Any]:
        end = perf_counter()
        state = scope.get("state", {})
        fields: dict[str, Any] = {
            "method": scope["method"] if scope["method"] in METHODS else "other",
            "route": getattr(scope.get("route"), "path_format", None) or state.get("route", "none"),
            "status": self._status,
            "first_ms": round(1e3 * ((self._first or end) - self._start), 1),
            "ms": round(1e3 * (end - self._start), 1),
            "bytes": 0 if scope["method"] == "HEAD" else self._bytes,
        }
        if not self._whole:
            fields["cut"] = True
        if self._session:
            fields["session"] = self._session.decode("latin-1")
        figures: Figures | None = state.get(FIGURES)
        return fields | figures() if figures else fields
