"""An id for each request, of the client's choice or ours: in its answer, and in all log lines that belong to it."""

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.logs import REQUEST_ID

HEADER = b"x-request-id"
SANE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """Takes an id from the client where it is one that fits into a header and a log, else makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == HEADER), b"")
        request_id = given if SANE.fullmatch(given) else secrets.token_hex(16).encode()

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id)]
            await send(message)

        token = REQUEST_ID.set(request_id.decode())
        try:
            await self._app(scope, receive, tell)
        finally:
            REQUEST_ID.reset(token)
