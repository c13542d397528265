"""POST /v1/chat/completions."""

import asyncio
import re
import time
from contextlib import ExitStack

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from decoding.options import EngineFacts
from server import asking, body
from server.answer import Answer, LateAnswer
from server.chat_reply import ChatReply
from server.chat_turn import ChatTurn
from server.disconnect import unless_gone
from server.errors import invalid
from server.replies import Identity
from server.request import Request
from server.schemas import SESSION_ID, ChatRequest
from server.service import Loaded, Service
from server.sse import EventStream
from server.transcript import Transcript


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["chat"])
    settings = service.settings

    @router.post("/v1/chat/completions")
    async def create(http: HttpRequest) -> Response:
        deadline = asyncio.get_running_loop().time() + settings.request_timeout_seconds
        raw = await body.read(http, settings.max_body_bytes)
        named = http.headers.get("x-session-id", "").encode()
        request, loaded = service.enter(http.state.namespace, named + raw)
        with ExitStack() as stack:
            stack.callback(service.scheduler.cancel, request)
            asked = await body.validate(raw, ChatRequest)
            service.check_model(asked.model)
            check(asked, settings.max_output_tokens, loaded.facts)
            service.check_choices(asked.n, "n")
            name = session_name(http, asked.session_id, asked.session_mode)
            turn = ChatTurn(service, loaded, request, asked, deadline)
            stack.callback(turn.leave)
            others = [_another(service, request, stack) for _ in range(1, asked.n)]
            await unless_gone(http, turn.begin(http.state.namespace, name))
            reply = _reply(service, loaded, turn, others, stack, deadline)
            http.state.figures = reply.figures
            headers = {"X-Session-ID": turn.lease.session.conversation.id}
            if asked.stream:
                # What choices register from now on is released with the stream.
                return EventStream(reply.events(settings.ping_seconds), stack.pop_all().close, headers)
            whole = await unless_gone(http, reply.whole())
            return Response(whole, headers=headers, media_type="application/json")

    return router


def session_name(http: HttpRequest, in_body: str | None, mode: str | None) -> str | None:
    """Which session the request names; None: it is found by its messages. Raises `ApiError`."""
    name = http.headers.get("x-session-id") or in_body
    if name is not None and not re.fullmatch(SESSION_ID, name):
        raise invalid("'X-Session-ID' takes 1 to 128 letters, digits and . _ : -", "X-Session-ID")
    if name is None and mode is not None:
        raise invalid("'session_mode' is of use with a 'session_id' only.", "session_mode")
    return name


def check(asked: ChatRequest, max_output_tokens: int, facts: EngineFacts) -> None:
    """What the schema alone cannot tell. Raises `ApiError`."""
    asking.check(asked, asked.asked_tokens or max_output_tokens, max_output_tokens, facts)
    if asked.top_logprobs is not None and not asked.logprobs:
        raise invalid("'top_logprobs' is only allowed with 'logprobs': true.", "top_logprobs")
    for name in ("tool_choice", "parallel_tool_calls"):
        if getattr(asked, name) is not None and not asked.tools:
            raise invalid(f"'{name}' is only allowed with 'tools'.", name)
    if asked.add_generation_prompt is (asked.continue_final_message):
        raise invalid(
            "'add_generation_prompt' is false with 'continue_final_message', else true.", "add_generation_prompt"
        )
    if asked.continue_final_message and asked.is_constrained:
        raise invalid(
            "'continue_final_message' goes with no format and no call that is asked for: these begin with the answer.",
            "continue_final_message",
        )
    if asked.continue_final_message and not asked.has_begun:
        raise invalid(
            "'continue_final_message' goes on with a last message of the assistant's, text alone, behind others.",
            "messages",
        )
    asking.check_ending(asked)
    asking.check_choice(asked)


def _another(service: Service, request: Request, stack: ExitStack) -> Request:
    """Each choice takes a place in the queue. Raises `ApiError`."""
    other = service.scheduler.reserve(request.digest)
    stack.callback(service.scheduler.cancel, other)
    return other


def _reply(
    service: Service, loaded: Loaded, turn: ChatTurn, others: list[Request], stack: ExitStack, deadline: float
) -> ChatReply:
    asked, scheduler = turn.asked, service.scheduler
    vocabulary = loaded.vocabulary if asked.logprobs else None

    def answer(turn: ChatTurn, transcript: Transcript) -> Answer:
        return Answer(turn.request, transcript, scheduler, deadline, turn.lease.keep)

    def late(request: Request, number: int) -> LateAnswer:
        async def begin(transcript: Transcript) -> Answer:
            branch = await turn.branch(request, number)
            leaving.callback(branch.leave)
            return answer(branch, transcript)

        return LateAnswer(begin, turn.transcript)

    leaving = ExitStack()  # of choices that have begun
    stack.push(leaving)
    answers: list[Answer | LateAnswer] = [answer(turn, turn.transcript)]
    answers += (late(request, number) for number, request in enumerate(others, 1))
    identity = Identity(f"chatcmpl-{turn.request.id}", int(time.time()), asked.model, loaded.fingerprint)
    return ChatReply(
        identity,
        answers,
        lambda: turn.lease.describe(turn.request.forwarded),
        vocabulary=vocabulary,
        include_usage=asked.include_usage,
    )
