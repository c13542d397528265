"""Work that is of no use to anybody once the client has gone."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def unless_gone(http: Request, work: Coroutine[None, None, T]) -> T:
    """The result of `work`; or `ClientDisconnect`, with `work` cancelled, as soon as the client goes away.

    A handler that has not begun its response is told of this by nobody. The request's body must have been read.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(http))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
