"""What every request passes on its way to a route, the outermost first. Pure ASGI: others hide who has gone away."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access_log import AccessLog
from server.errors import ErrorMiddleware
from server.gate import Gate
from server.request_id import RequestIds
from server.service import Service

ALIASES = ("/chat/completions", "/completions", "/models")  # that go without their `/v1`, too
EXPOSED = ("X-Request-ID", "X-Session-ID", "Retry-After")  # headers that a page's script may read


def install(app: FastAPI, service: Service) -> None:
    settings = service.settings
    # What is added later is further out.
    app.add_middleware(Gate, keys=service.keys, scheduler=service.scheduler)
    app.add_middleware(ErrorMiddleware)
    if settings.cors_origins:
        app.add_middleware(  # outside of the gate: browsers ask for leave without a key, and must see refusals
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "HEAD", "POST", "DELETE"),
            allow_headers=("*",),  # the SDKs send some of their own
            expose_headers=EXPOSED,
        )
    app.add_middleware(Paths)
    if settings.access_log:
        app.add_middleware(AccessLog)
    app.add_middleware(RequestIds)


class Paths:
    """`/v1/models/` is `/v1/models`, and so is `/models`, for clients whose base URL has no `/v1`.

    To redirect would lose bodies and keys with some clients.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].rstrip("/") or "/"
            short = any(path == alias or path.startswith(f"{alias}/") for alias in ALIASES)
            scope["path"] = f"/v1{path}" if short else path
        await self._app(scope, receive, send)
