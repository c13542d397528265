"""POST /v1/chat/completions."""

import asyncio
import secrets
import time
from contextlib import ExitStack

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from decoding.drafting import DraftingError, resolve
from decoding.suffix import LIMIT
from decoding.turn import Drafting, Sampling, Turn
from server import body
from server.answer import Answer
from server.chat_reply import ChatReply
from server.disconnect import unless_gone
from server.errors import context_length_exceeded, invalid, timed_out
from server.replies import Identity
from server.request import Request
from server.schemas import ChatRequest
from server.service import Loaded, Service
from server.sse import EventStream
from server.template import MessagesError
from server.transcript import Transcript


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["chat"])
    settings = service.settings

    @router.post("/v1/chat/completions")
    async def create(http: HttpRequest) -> Response:
        deadline = asyncio.get_running_loop().time() + settings.request_timeout_seconds
        asked = await body.read(http, ChatRequest, settings.max_body_bytes)
        _check(asked, settings.max_output_tokens)
        request, loaded = service.enter(asked.model)
        with ExitStack() as stack:
            stack.callback(service.scheduler.cancel, request)
            await unless_gone(http, _admit(service, loaded, request, asked, deadline))
            reply = _reply(service, loaded, request, asked, deadline)
            if asked.stream:
                return EventStream(reply.events(settings.ping_seconds), release=stack.pop_all().close)
            return Response(await unless_gone(http, reply.whole()), media_type="application/json")

    return router


def _check(asked: ChatRequest, max_output_tokens: int) -> None:
    """What the schema alone cannot tell. Raises `ApiError`."""
    if asked.stream_options is not None and not asked.stream:
        raise invalid("'stream_options' is only allowed with 'stream': true.", "stream_options")
    for name in ("max_completion_tokens", "max_tokens"):
        if (getattr(asked, name) or 0) > max_output_tokens:
            raise invalid(f"'{name}' may be at most {max_output_tokens} here.", name)
    most = asked.asked_tokens or max_output_tokens
    if asked.min_tokens > most:
        raise invalid(f"'min_tokens' may be at most {most}, the most tokens that are generated.", "min_tokens")


async def _admit(service: Service, loaded: Loaded, request: Request, asked: ChatRequest, deadline: float) -> None:
    """Returns when the request runs. Raises `ApiError` where it cannot, or not in time."""
    try:
        async with asyncio.timeout_at(deadline):
            turn, sinks = await asyncio.to_thread(_turn, service, loaded, request, asked)
            service.scheduler.submit(request, turn, sinks)
            await request.admitted()
    except TimeoutError:
        raise timed_out(service.settings.request_timeout_seconds) from None


def _encode(service: Service, loaded: Loaded, asked: ChatRequest) -> tuple[list[int], int]:
    """The prompt's tokens, and how many of them are pinned. Raises `ApiError`."""
    template, facts = loaded.template, loaded.facts
    for index, message in enumerate(asked.messages):
        if message.name is not None and not template.shows_names:
            raise invalid("This model's chat template shows no names.", f"messages[{index}].name")
    messages = [message.for_template() for message in asked.messages]
    try:
        tokens = template.encode(messages)
        if not facts.max_sinks:
            sinks = 0
        elif service.settings.sinks == "pinned":
            sinks = template.pinned(messages, tokens)
        else:
            sinks = service.settings.sinks
    except MessagesError as error:
        raise invalid(f"The model's chat template refuses these messages: {error}", "messages") from None
    if sinks > facts.max_sinks:
        raise context_length_exceeded(
            f"The system messages take {sinks} tokens; at most {facts.max_sinks} can be pinned "
            f"at a capacity of {facts.capacity} with blocks of {facts.block}."
        )
    if facts.max_length is not None and len(tokens) > facts.max_length:
        raise context_length_exceeded(f"The messages take {len(tokens)} tokens; at most {facts.max_length} fit here.")
    return tokens, sinks


def _turn(service: Service, loaded: Loaded, request: Request, asked: ChatRequest) -> tuple[Turn, int]:
    """What the engine is asked, and how many of its tokens are pinned. Raises `ApiError`."""
    sampling, drafting = _sampling(asked, loaded.facts.vocab_size), _drafting(asked, loaded.facts.max_rows)
    tokens, sinks = _encode(service, loaded, asked)
    turn = Turn(
        session=request.id,
        tokens=tokens,
        sampling=sampling,
        max_tokens=asked.asked_tokens or service.settings.max_output_tokens,
        min_tokens=asked.min_tokens,
        end_ids=loaded.facts.end_ids,
        drafting=drafting,
        # as much of it as is kept to draft from
        prediction=loaded.template.encode_text(asked.prediction.text)[:LIMIT] if asked.prediction else [],
    )
    return turn, sinks


def _sampling(asked: ChatRequest, vocab_size: int) -> Sampling:
    """Raises `ApiError`."""
    logit_bias = {int(token): bias for token, bias in asked.logit_bias.items()}
    if max(logit_bias, default=0) >= vocab_size:
        raise invalid(f"'logit_bias' takes the model's token ids, which are 0 to {vocab_size - 1}.", "logit_bias")
    return Sampling(
        # negative seeds are as good as others
        seed=secrets.randbits(64) if asked.seed is None else asked.seed % 2**64,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
        logit_bias=logit_bias,
    )


def _drafting(asked: ChatRequest, max_rows: int) -> Drafting | None:
    """Raises `ApiError`."""
    if asked.lookahead is None:
        return None
    try:
        return resolve(asked.lookahead.drafting, max_rows)
    except DraftingError as error:
        path = f"lookahead.{error.parameter}"
        raise invalid(f"Invalid value for '{path}': {error}.", path, "invalid_value") from None


def _reply(service: Service, loaded: Loaded, request: Request, asked: ChatRequest, deadline: float) -> ChatReply:
    assert request.turn is not None
    identity = Identity(f"chatcmpl-{request.id}", int(time.time()), asked.model, loaded.fingerprint)
    answer = Answer(request, Transcript(loaded.template.tokenizer, asked.stop), service.scheduler, deadline)
    include_usage = asked.stream_options is not None and asked.stream_options.include_usage
    return ChatReply(identity, answer, len(request.turn.tokens), include_usage)
