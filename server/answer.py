"""One request being answered: its text as it comes, for streams and whole replies alike."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from server.piece import Piece
from server.request import Request, State
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
        keep: Callable[[Transcript], Awaitable[None]] | None = None,
    ) -> None:
        self._request = request
        self._scheduler = scheduler
        self._deadline = deadline  # in the event loop's time
        self._keep = keep
        self.transcript = transcript

    @property
    def has_begun(self) -> bool:
        return True

    @property
    def begun(self) -> "Answer":
        """Itself."""
        return self

    @property
    def prompt_tokens(self) -> int:
        """Of what the model saw: reused, and read for this answer."""
        return self.cached_tokens + self._request.forwarded

    @property
    def cached_tokens(self) -> int:
        return self._request.cached

    @property
    def forwarded_tokens(self) -> int:
        """Of the prompt, what was not cached."""
        return self._request.forwarded

    @property
    def seconds(self) -> tuple[float, float]:
        """How long the prompt was read, up to the first token, and the rest of the answer generated."""
        first, last = self._request.output_times
        return max(0.0, first - self._request.times[State.RUNNING]), last - first

    async def pieces(self, silence: float = 0) -> AsyncIterator[Piece]:
        """Pieces with text; an empty one after each `silence` seconds without any (0: never).

        Raises `ApiError` where the request fails. Ends with the transcript's `finish_reason` set.
        """
        loop = asyncio.get_running_loop()
        late = loop.call_at(self._deadline, self._finish)  # also where nobody asks for more: a reader that stands still
        try:
            while self.transcript.finish_reason is None:
                patience = loop.time() + silence if silence else self._deadline
                try:
                    async with asyncio.timeout_at(min(patience, self._deadline)):
                        piece = await self._next_piece()
                except TimeoutError:
                    piece = self._end_late() if loop.time() >= self._deadline else Piece()
                if piece or self.transcript.finish_reason is None:
                    yield piece
            if self._keep is not None:
                await self._keep(self.transcript)
        finally:
            late.cancel()

    async def _next_piece(self) -> Piece:
        """Waits for a step that adds text or ends the answer."""
        piece = Piece()
        while not piece and self.transcript.finish_reason is None:
            piece = self.transcript.push(await self._request.output())
        if self.transcript.keep is not None:
            self._scheduler.finish(self._request, self.transcript.keep)
        return piece

    def _end_late(self) -> Piece:
        self._finish()
        return self.transcript.end("length")

    def _finish(self) -> None:
        self._scheduler.finish(self._request, self._request.length)


class LateAnswer:
    """An answer that begins when it is read: a further choice, which is copied from the first one's prompt."""

    def __init__(self, begin: Callable[[Transcript], Awaitable[Answer]], transcript: Transcript) -> None:
        self._begin = begin
        self._answer: Answer | None = None
        self.transcript = transcript

    @property
    def has_begun(self) -> bool:
        return self._answer is not None

    @property
    def begun(self) -> Answer:
        """Once it has been read from."""
        assert self._answer is not None
        return self._answer

    async def pieces(self, silence: float = 0) -> AsyncIterator[Piece]:
        """As `Answer.pieces`, but silent until it begins."""
        self._answer = await self._begin(self.transcript)
        async for piece in self._answer.pieces(silence):
            yield piece
