"""The stream as a response: it is released whatever happens to it."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

from server.sse import DONE, EventStream, event

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}


async def events() -> AsyncIterator[bytes]:
    yield event(b"{}")
    yield DONE


async def forever() -> MutableMapping[str, Any]:
    await asyncio.sleep(60)
    raise AssertionError


async def gone() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


def test_events_leave_as_they_are_and_the_stream_is_released() -> None:
    sent: list[MutableMapping[str, Any]] = []
    released: list[bool] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(EventStream(events(), lambda: released.append(True))(SCOPE, forever, send))
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"cache-control"] == b"no-store"
    assert headers[b"x-accel-buffering"] == b"no"
    assert b"".join(message["body"] for message in sent[1:]) == b"data: {}\n\ndata: [DONE]\n\n"
    assert released == [True]


@pytest.mark.parametrize("stuck", [True, False])
def test_a_client_that_is_gone_before_the_first_event_is_released_too(stuck: bool) -> None:
    """The iterator may never start then, so that no `finally` of its own would run."""
    released: list[bool] = []

    async def send(_: MutableMapping[str, Any]) -> None:
        if stuck:
            await asyncio.sleep(60)

    asyncio.run(EventStream(events(), lambda: released.append(True))(SCOPE, gone, send))
    assert released == [True]
