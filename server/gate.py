"""The server's gate: who may come in, before anything is read or done for them."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError
from server.keys import Keys
from server.scheduler import Scheduler

OPEN_PATHS = ("/health", "/health/live")
QUEUED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


class Gate:
    """Lets nobody past without a key, but to ask for health, and nobody into a queue that is full: in a burst, refusals
    must cost next to nothing. Puts the caller's namespace into the request's state.
    """

    def __init__(self, app: ASGIApp, keys: Keys, scheduler: Scheduler) -> None:
        self._app = app
        self._keys = keys
        self._scheduler = scheduler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (path := scope["path"]) not in OPEN_PATHS:
            state = scope.setdefault("state", {})
            if path in QUEUED_PATHS:
                state["route"] = path  # for the log: what is refused here meets no route
            try:
                namespace = self._keys.namespace(Headers(scope=scope).get("authorization", ""))
                if path in QUEUED_PATHS and scope["method"] == "POST":
                    self._scheduler.check_room()
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
            state["namespace"] = namespace
        await self._app(scope, receive, send)
