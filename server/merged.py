"""Several streams as one, in the order in which their pieces come."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T | None]]:
    """Each piece with its stream's index; None is a stream's end. The first failure ends all, and is raised.

    A stream is asked for its next piece when the last one was taken: it never runs ahead of the reader.
    """
    if len(streams) == 1:
        async for piece in streams[0]:
            yield 0, piece
        yield 0, None
        return
    asking: dict[asyncio.Future[T], int] = {}

    def ask(index: int) -> None:
        asking[asyncio.ensure_future(anext(streams[index]))] = index

    try:
        for index in range(len(streams)):
            ask(index)
        while asking:
            done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            for asked in sorted(done, key=asking.__getitem__):
                index = asking.pop(asked)
                if isinstance(asked.exception(), StopAsyncIteration):
                    yield index, None
                else:
                    yield index, asked.result()
                    ask(index)
    finally:
        for asked in asking:
            asked.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
