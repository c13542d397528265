"""Many requests at one moment into a server with a short queue: who is admitted, and how soon others are refused."""

import asyncio
import time
from collections import Counter
from typing import Any

from benchmarks.chats import PATH, Chat, encode, read
from benchmarks.http_client import Connection
from benchmarks.measure import milliseconds, table
from benchmarks.server_process import ServerProcess

WAITING = 50


def burst_table(model: str, requests: int, places: int, **settings: Any) -> None:
    """Of a server that is started for it."""
    with ServerProcess(model, max_waiting=WAITING, max_running=places, served_model_name="burst", **settings) as server:
        chats, seconds = asyncio.run(_burst(server, requests))
        health, _ = asyncio.run(server.target.ask("/health"))
    refused = [chat for chat in chats if chat.status == 429]
    admitted = [chat for chat in chats if chat.status == 200 and not chat.failure]
    others = Counter(chat.failure for chat in chats if chat.failure and chat.status != 429)
    rows = [
        ["places and queue", f"{places} + {WAITING}"],
        ["answered whole", f"{len(admitted)}"],
        ["refused (429)", f"{len(refused)}"],
        ["other", ", ".join(f"{count} {reason}" for reason, count in others.items()) or "0"],
        ["refusal, ms p50 / p99", milliseconds([chat.answered - chat.sent for chat in refused], 50, 99)],
        ["all answered after", f"{seconds:.1f} s"],
        ["/health behind it", f"{health}"],
    ]
    table(f"{requests} requests at once", ["", ""], rows)


async def _burst(server: ServerProcess, requests: int) -> tuple[list[Chat], float]:
    """All connections stand before the first request is sent, so that only requests are timed."""
    target = server.target
    connections = [await target.connect() for _ in range(requests)]
    messages = [{"role": "user", "content": "Count from one to ten, in words."}]
    body = encode({"model": "burst", "messages": messages, "max_tokens": 16, "temperature": 0, "stream": True})
    began = time.perf_counter()
    chats = await asyncio.gather(*(_ask(connection, target.request(PATH, body)) for connection in connections))
    return chats, time.perf_counter() - began


async def _ask(connection: Connection, request: bytes) -> Chat:
    chat = Chat()
    try:
        await connection.send(request)
        chat.sent = time.perf_counter()
        return await read(connection, chat)
    except OSError as error:
        chat.failure = f"connection lost: {type(error).__name__}"
        return chat
    finally:
        connection.close()
