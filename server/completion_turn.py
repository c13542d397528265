"""Completions on their way into the worker: each prompt is a session that is forgotten when it is answered."""

import asyncio
from array import array
from collections.abc import Sequence
from uuid import uuid4

from decoding.turn import Turn
from server import asking
from server.asking import another
from server.placing import in_time, place
from server.request import Placement, Request
from server.schemas import CompletionRequest
from server.service import Loaded, Service
from server.template import MIN_PINNED


class CompletionTurn:
    """One choice of one prompt."""

    def __init__(
        self,
        service: Service,
        loaded: Loaded,
        request: Request,
        asked: CompletionRequest,
        tokens: Sequence[int],
        deadline: float,
    ) -> None:
        """tokens: the prompt. deadline: of the whole answer, in the event loop's time."""
        self._service, self._loaded = service, loaded
        self.request, self._asked = request, asked
        self._tokens, self._deadline = list(tokens), deadline
        self._read = 0  # of the prompt's tokens, how many the worker has with the source of a copy
        self._handle = uuid4().hex
        sinks = MIN_PINNED if service.settings.sinks == "pinned" else service.settings.sinks
        self._sinks = min(sinks, loaded.facts.max_sinks)

    async def begin(self) -> None:
        """Returns when the request runs. Raises `ApiError` where it cannot, or not in time."""
        settings, facts, asked = self._service.settings, self._loaded.facts, self._asked
        turn = Turn(
            session=self._handle,
            tokens=self._tokens,
            sampling=asking.sampling(asked, facts.vocab_size),
            max_tokens=max(1, asked.max_tokens),  # one that nobody asked for costs nothing, and is not told
            min_tokens=asked.min_tokens,
            end_ids=asking.end_ids(asked, facts),
            drafting=asking.drafting(asked, facts.max_rows),
            logprobs=asked.logprobs,
            prompt_logprobs=asked.echo and asked.logprobs is not None,
        )
        seconds = settings.queue_timeout_seconds
        limit = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        async with in_time(limit, min(seconds, settings.request_timeout_seconds)):
            await place(self._service.scheduler, self.request, turn, self._placement, asked.priority)

    async def branch(self, request: Request, number: int) -> "CompletionTurn":
        """Another choice, once the prompt of this one is read: of that it costs a copy. Raises `ApiError`."""
        branch = CompletionTurn(self._service, self._loaded, request, self._asked, self._tokens, self._deadline)
        branch._read = len(self._tokens) - 1
        scheduler = self._service.scheduler
        try:
            async with in_time(self._deadline, self._service.settings.request_timeout_seconds):
                await self.request.prompt_read()
                scheduler.copy(branch._handle, self._handle, branch._read)
                turn = another(self.request, number, branch._handle, self._tokens[branch._read :])
                await place(scheduler, request, turn, branch._placement, self._asked.priority)
        except BaseException:
            branch.leave()
            raise
        return branch

    def leave(self) -> None:
        """The worker forgets prompt and answer when it is done with this request, which must end now or soon."""
        self._loaded.sessions.background(self._leave())

    async def _leave(self) -> None:
        if self.request.turn is not None:
            await self.request.ended()
        self._service.scheduler.drop(self._handle)

    async def _placement(self, held: bool) -> Placement:
        ids = array("i", self._tokens[: self._read]).tobytes()
        return Placement(sinks=self._sinks, ids=None if held else ids, keep=self._read)
