"""What every request passes on its way to a route, the outermost first. Pure ASGI: others hide who has gone away."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access_log import AccessLog
from server.errors import ErrorMiddleware
from server.gate import Gate
from server.request_id import RequestIds
from server.service import Service

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
    app.add_middleware(TrimSlash)
    if settings.access_log:
        app.add_middleware(AccessLog)
    app.add_middleware(RequestIds)


class TrimSlash:
    """`/v1/models/` is `/v1/models`. To redirect would lose bodies and keys with some clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["path"].rstrip("/") or "/"
        await self._app(scope, receive, send)
