"""What each thing that all requests pass costs a request, in microseconds of the CPU, over an answer of two messages.

python -m benchmarks.front 2>/dev/null
"""

import asyncio
import time
from collections.abc import Callable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server import logs
from server.access_log import AccessLog
from server.front import Paths
from server.request_id import RequestIds

REQUESTS = 20_000
HEADERS = [(b"host", b"x"), (b"content-type", b"application/json"), (b"origin", b"https://chat.example")]


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    scope["route"] = None
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


async def seconds(app: ASGIApp) -> float:
    """A request."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    start = time.process_time()
    for _ in range(REQUESTS):
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": HEADERS, "state": {}}
        await app(scope, receive, send)
    return (time.process_time() - start) / REQUESTS


def main() -> None:
    logs.set_up(logs.LogStyle("info", "text"))
    layers: dict[str, Callable[[ASGIApp], ASGIApp]] = {
        "request ids": RequestIds,
        "access log, a line written": AccessLog,
        "slashes": Paths,
        "other origins": lambda app: CORSMiddleware(app, allow_origins=["https://chat.example"]),
    }
    bare = asyncio.run(seconds(answer))
    print("| layer | µs a request |\n|---|---|")
    for name, layer in layers.items():
        print(f"| {name} | {1e6 * (asyncio.run(seconds(layer(answer))) - bare):.1f} |")


if __name__ == "__main__":
    main()
