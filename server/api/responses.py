"""POST /v1/responses: OpenAI's Responses API, over chats."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from server import asking, body, response_input
from server.answer import Answer
from server.disconnect import unless_gone
from server.errors import ApiError, invalid
from server.replies import Identity
from server.response_id import KEY, ResponseId
from server.response_reply import ResponseReply
from server.response_schemas import LOGPROBS, ResponseRequest
from server.response_turn import ResponseTurn
from server.service import Loaded, Service
from server.sse import EventStream

WORDS = {
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}  # of chats, and here


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["responses"])
    settings = service.settings

    @router.post("/v1/responses")
    async def create(http: HttpRequest) -> Response:
        deadline = asyncio.get_running_loop().time() + settings.request_timeout_seconds
        raw = await body.read(http, settings.max_body_bytes)
        request, loaded = service.enter(http.state.namespace, raw)
        with ExitStack() as stack:
            stack.callback(service.scheduler.cancel, request)
            asked = await body.validate(raw, ResponseRequest)
            service.check_model(asked.model)
            _check(http, asked, settings.max_output_tokens, loaded)
            with _in_its_own_words():
                conversation = await response_input.read(asked, loaded.sessions, http.state.namespace)
                turn = ResponseTurn(service, loaded, request, asked, conversation, deadline)
                stack.callback(turn.leave)
                asking.check_choice(turn.asked)
                asking.check_ending(turn.asked)
                await unless_gone(http, turn.begin(http.state.namespace, None))
            reply = _reply(service, loaded, turn, asked, deadline)
            http.state.figures = reply.figures
            headers = {"X-Session-ID": turn.lease.session.conversation.id}
            if asked.stream:
                return EventStream(reply.events(settings.ping_seconds), stack.pop_all().close, headers)
            whole = await unless_gone(http, reply.whole())
            return Response(whole, headers=headers, media_type="application/json")

    return router


def _check(http: HttpRequest, asked: ResponseRequest, max_output_tokens: int, loaded: Loaded) -> None:
    """What the schema alone cannot tell. Raises `ApiError`."""
    asking.check(asked, asked.max_output_tokens or max_output_tokens, max_output_tokens, loaded.facts)
    if asked.top_logprobs and not asked.logprobs:
        raise invalid(f"'top_logprobs' is only allowed with 'include': [\"{LOGPROBS}\"].", "top_logprobs")
    if asked.truncation == "auto" and loaded.facts.max_length is not None:
        raise invalid("'truncation' is always 'disabled' here: this server's cache forgets nothing.", "truncation")
    if "x-session-id" in http.headers:
        raise invalid("Responses go on by 'previous_response_id', not by a session's name.", "X-Session-ID")


@contextmanager
def _in_its_own_words() -> Iterator[None]:
    """What a chat says of its messages holds for the input that they were made of."""
    try:
        yield
    except ApiError as error:
        param = re.split(r"[\[.]", error.body.param or "")[0]
        if param not in WORDS:
            raise
        told = msgspec.structs.replace(error.body, param=WORDS[param])
        raise ApiError(error.status, told, error.retry_after, error.headers) from None


def _reply(
    service: Service, loaded: Loaded, turn: ResponseTurn, asked: ResponseRequest, deadline: float
) -> ResponseReply:
    lease = turn.lease
    id_ = ResponseId.make(lease.session.conversation.id if asked.store else None, instructed=bool(asked.instructions))
    if asked.store:
        lease.marks = {KEY: id_.mark}
    return ResponseReply(
        Identity(id_.of("resp"), int(time.time()), asked.model, loaded.fingerprint),
        id_,
        asked,
        Answer(turn.request, turn.transcript, service.scheduler, deadline, lease.keep),
        lambda: lease.describe(turn.request.forwarded),
        forgets=loaded.facts.max_length is None,
        vocabulary=loaded.vocabulary if asked.logprobs else None,
    )
