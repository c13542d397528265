"""One request being answered: its text as it comes, for streams and whole replies alike."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from server.request import Request
from server.scheduler import Scheduler
from server.transcript import Transcript


class Answer:
    """Reads an admitted request's outputs, and ends it where a stop string or the time limit says so.

    `keep` is awaited with the whole transcript before the end is told: what a client has seen ended is remembered.
    """

    def __init__(
        self,
        request: Request,
        transcript: Transcript,
        scheduler: Scheduler,
        deadline: float,
        keep: Callable[[Transcript], Awaitable[None]],
    ) -> None:
        self._request = request
        self._scheduler = scheduler
        self._deadline = deadline  # in the event loop's time
        self._keep = keep
        self.transcript = transcript

    @property
    def prompt_tokens(self) -> int:
        """Of what the model saw: reused, and read for this answer."""
        return self.cached_tokens + self._request.forwarded

    @property
    def cached_tokens(self) -> int:
        return self._request.cached

    async def pieces(self, silence: float = 0) -> AsyncIterator[str]:
        """Text that is not empty, unless something was added to calls; an empty one after each `silence` seconds
        without any (0: never).

        Raises `ApiError` where the request fails. Ends with the transcript's `finish_reason` set.
        """
        loop = asyncio.get_running_loop()
        late = loop.call_at(self._deadline, self._finish)  # also where nobody asks for more: a reader that stands still
        try:
            while self.transcript.finish_reason is None:
                patience = loop.time() + silence if silence else self._deadline
                try:
                    async with asyncio.timeout_at(min(patience, self._deadline)):
                        text = await self._next_text()
                except TimeoutError:
                    text = self._end_late() if loop.time() >= self._deadline else ""
                if text or self.transcript.calls.has_news or self.transcript.finish_reason is None:
                    yield text
            await self._keep(self.transcript)
        finally:
            late.cancel()

    async def _next_text(self) -> str:
        """Waits for a step that adds text or to calls, or ends the answer."""
        text = self.transcript.push(await self._request.output())
        while not text and not self.transcript.calls.has_news and self.transcript.finish_reason is None:
            text = self.transcript.push(await self._request.output())
        if self.transcript.keep is not None:
            self._scheduler.finish(self._request, self.transcript.keep)
        return text

    def _end_late(self) -> str:
        self._finish()
        return self.transcript.end("length")

    def _finish(self) -> None:
        self._scheduler.finish(self._request, self._request.length)


class LateAnswer:
    """An answer that begins when it is read: a further choice, which is copied from the first one's prompt."""

    def __init__(self, begin: Callable[[Transcript], Awaitable[Answer]], transcript: Transcript) -> None:
        self._begin = begin
        self.transcript = transcript

    async def pieces(self, silence: float = 0) -> AsyncIterator[str]:
        """As `Answer.pieces`, but silent until it begins."""
        answer = await self._begin(self.transcript)
        async for piece in answer.pieces(silence):
            yield piece
