"""POST /tokenize, /detokenize and /v1/chat/completions/input_tokens: tokens without an answer."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from server import body, chat_prompt
from server.api import chat
from server.aside import Aside
from server.disconnect import unless_gone
from server.errors import context_length_exceeded, invalid, unavailable
from server.schemas import ChatRequest
from server.service import Loaded, Service
from server.token_replies import Detokenized, InputTokens, Tokenized
from server.token_schemas import DetokenizeRequest, TokenizeRequest

T = TypeVar("T", bound=BaseModel)


def build_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["tokens"])
    aside = Aside(service.settings.max_waiting)

    async def enter(http: HttpRequest, schema: type[T]) -> tuple[T, Loaded]:
        """Raises `ApiError`."""
        raw = await body.read(http, service.settings.max_body_bytes)
        if service.loaded is None:
            raise unavailable(service.unready or "")
        service.keys.spend(http.state.namespace)
        asked = await body.validate(raw, schema)
        if (model := getattr(asked, "model", None)) is not None:
            service.check_model(model)
        return asked, service.loaded

    async def answer(http: HttpRequest, work: Callable[[], msgspec.Struct]) -> Response:
        encoded = await unless_gone(http, aside.run(lambda: msgspec.json.encode(work())))
        return Response(encoded, media_type="application/json")

    def tokenized(tokens: list[int], asked: TokenizeRequest, loaded: Loaded) -> Tokenized:
        name = loaded.template.tokenizer.id_to_token
        return Tokenized(
            count=len(tokens),
            max_model_len=loaded.facts.max_length or service.settings.max_prompt_tokens,
            tokens=tokens,
            token_strs=[name(token) or "" for token in tokens] if asked.return_token_strs else None,
        )

    @router.post("/tokenize")
    async def tokenize(http: HttpRequest) -> Response:
        asked, loaded = await enter(http, TokenizeRequest)
        _check(asked)
        if asked.messages is None:
            text, special = asked.prompt or "", asked.add_special_tokens is not False
            tokenizer = loaded.template.tokenizer
            return await answer(
                http,
                lambda: tokenized(
                    tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids, asked, loaded
                ),
            )
        chat_asked = ChatRequest.model_construct(model="", messages=asked.messages)
        prompt = await chat_prompt.read(chat_asked, loaded, service.settings, goes_on=False)
        opens_reply = asked.add_generation_prompt is not False
        return await answer(http, lambda: tokenized(prompt.encode(opens_reply=opens_reply), asked, loaded))

    @router.post("/detokenize")
    async def detokenize(http: HttpRequest) -> Response:
        asked, loaded = await enter(http, DetokenizeRequest)
        return await answer(http, lambda: _detokenized(asked, loaded, service.settings.max_prompt_tokens))

    @router.post("/v1/chat/completions/input_tokens")
    async def count(http: HttpRequest) -> Response:
        asked, loaded = await enter(http, ChatRequest)
        chat.check(asked, service.settings.max_output_tokens, loaded.facts)
        goes_on = chat.session_name(http, asked.session_id, asked.session_mode) is not None
        prompt = await chat_prompt.read(asked, loaded, service.settings, goes_on=goes_on)
        return await answer(http, lambda: InputTokens(input_tokens=len(prompt.encode())))

    return router


def _check(asked: TokenizeRequest) -> None:
    """What is of use with the other kind only. Raises `ApiError`."""
    if asked.messages is None and asked.add_generation_prompt is not None:
        raise invalid("'add_generation_prompt' is of use with 'messages' only.", "add_generation_prompt")
    if asked.prompt is None and asked.add_special_tokens:
        raise invalid("'add_special_tokens' is of use with 'prompt' only: templates write them.", "add_special_tokens")


def _detokenized(asked: DetokenizeRequest, loaded: Loaded, most: int) -> Detokenized:
    tokenizer, vocab_size = loaded.template.tokenizer, loaded.facts.vocab_size
    if max(asked.tokens, default=0) >= vocab_size:
        raise invalid(f"'tokens' takes the model's token ids, which are 0 to {vocab_size - 1}.", "tokens")
    if len(asked.tokens) > most:
        raise context_length_exceeded(f"'tokens' has {len(asked.tokens)}; at most {most} are taken.", "tokens")
    return Detokenized(tokenizer.decode(asked.tokens, skip_special_tokens=False))
