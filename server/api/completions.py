"""POST /v1/completions."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from server import asking, body
from server.answer import Answer, LateAnswer
from server.completion_reply import CompletionReply
from server.completion_turn import CompletionTurn
from server.disconnect import unless_gone
from server.errors import invalid
from server.prompts import Prompt, encode
from server.replies import Identity
from server.request import Request
from server.schemas import MAX_CHOICES, CompletionRequest
from server.service import Loaded, Service
from server.sse import EventStream
from server.transcript import Transcript


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["completions"])
    settings = service.settings

    @router.post("/v1/completions")
    async def create(http: HttpRequest) -> Response:
        deadline = asyncio.get_running_loop().time() + settings.request_timeout_seconds
        raw = await body.read(http, settings.max_body_bytes)
        request, loaded = service.enter(http.state.namespace, raw)
        with ExitStack() as stack:
            stack.callback(service.scheduler.cancel, request)
            asked = await body.validate(raw, CompletionRequest)
            service.check_model(asked.model)
            _check(asked, settings.max_output_tokens, loaded)
            prompts = await asyncio.to_thread(encode, asked, loaded, settings.max_prompt_tokens)
            service.check_choices(len(prompts) * asked.n, "n" if len(prompts) == 1 else "prompt")
            requests = [request]
            for _ in range(1, len(prompts) * asked.n):
                requests.append(service.scheduler.reserve(request.digest))
                stack.callback(service.scheduler.cancel, requests[-1])
            completing = _Completing(service, loaded, asked, prompts, requests, deadline)
            stack.push(completing.leaving)
            await unless_gone(http, completing.turns[0].begin())
            reply = completing.reply()
            http.state.figures = reply.figures
            if asked.stream:
                return EventStream(reply.events(settings.ping_seconds), stack.pop_all().close)
            return Response(await unless_gone(http, reply.whole()), media_type="application/json")

    return router


def _check(asked: CompletionRequest, max_output_tokens: int, loaded: Loaded) -> None:
    """What the schema alone cannot tell. Raises `ApiError`."""
    asking.check(asked, asked.max_tokens, max_output_tokens, loaded.facts)
    if asked.max_tokens == 0 and not asked.echo:
        raise invalid("'max_tokens' may be 0 only with 'echo': true.", "max_tokens")
    if asked.best_of not in (None, asked.n):
        raise invalid("'best_of' is not supported here, except as much as 'n'.", "best_of", "unsupported_parameter")
    if len(asked.prompt) * asked.n > MAX_CHOICES:
        raise invalid(f"'prompt' and 'n' ask for more than {MAX_CHOICES} choices in all.", "prompt")


class _Completing:
    """All choices of a request, prompt by prompt: the first of each reads it, the others are copied from that."""

    def __init__(
        self,
        service: Service,
        loaded: Loaded,
        asked: CompletionRequest,
        prompts: list[Prompt],
        requests: list[Request],
        deadline: float,
    ) -> None:
        self._service, self._loaded, self._asked, self._deadline = service, loaded, asked, deadline
        self._prompts, self._requests = prompts, requests
        self.leaving = ExitStack()
        self.turns = [
            CompletionTurn(service, loaded, request, asked, prompt.tokens, deadline)
            for prompt, request in zip(prompts, requests[:: asked.n], strict=True)
        ]
        for turn in self.turns:
            self.leaving.callback(turn.leave)

    def reply(self) -> CompletionReply:
        """Once the first turn runs."""
        asked, loaded = self._asked, self._loaded
        answers: list[Answer | LateAnswer] = [self._answer(self.turns[0], self._transcript())]
        places = (divmod(index, asked.n) for index in range(1, len(self._requests)))
        answers += [LateAnswer(self._later(*place), self._transcript()) for place in places]
        identity = Identity(f"cmpl-{self._requests[0].id}", int(time.time()), asked.model, loaded.fingerprint)
        echoes = None
        if asked.echo:
            echoes = [prompt.echo(turn.request) for prompt, turn in zip(self._prompts, self.turns, strict=True)]
        return CompletionReply(
            identity,
            answers,
            echoes,
            choices=asked.n,
            vocabulary=None if asked.logprobs is None else loaded.vocabulary,
            include_usage=asked.include_usage,
        )

    def _later(self, prompt: int, number: int) -> Callable[[Transcript], Awaitable[Answer]]:
        async def begin(transcript: Transcript) -> Answer:
            turn = self.turns[prompt]
            if number:
                turn = await turn.branch(self._requests[prompt * self._asked.n + number], number)
                self.leaving.callback(turn.leave)
            else:
                await turn.begin()
            return self._answer(turn, transcript)

        return begin

    def _answer(self, turn: CompletionTurn, transcript: Transcript) -> Answer:
        return Answer(turn.request, transcript, self._service.scheduler, self._deadline)

    def _transcript(self) -> Transcript:
        asked, loaded = self._asked, self._loaded
        vocabulary = None if asked.logprobs is None else loaded.vocabulary
        return Transcript(loaded.template.tokenizer, asked.stop, vocabulary=vocabulary, empty=asked.max_tokens == 0)
