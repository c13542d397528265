"""All that the server answers: routes, what they take, and what may come of it. A test holds it against the routes."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import BaseModel

from server import replies, response_replies, token_replies
from server.response_schemas import ResponseRequest
from server.schemas import SESSION_ID, ChatRequest, CompletionRequest, NewSession
from server.token_schemas import DetokenizeRequest, TokenizeRequest

READING = (400, 408, 413, 415)  # a body
QUEUING = (404, 409, 429, 503)  # for the model
SAID = [{"role": "user", "content": "Give me three tips for sleeping well."}]


class Status(msgspec.Struct, frozen=True):
    """Of GET /health."""

    status: str


class OpenApi(msgspec.Struct, frozen=True):
    """This document."""

    openapi: str


@dataclass(frozen=True)
class Operation:
    tag: str
    summary: str
    description: str = ""
    body: type[BaseModel] | None = None
    needs_body: bool = True
    example: dict[str, Any] | None = None  # of a body, without the model's name
    status: int = 200
    reply: type[msgspec.Struct] | str = Status  # or a media type
    events: tuple[type[msgspec.Struct], ...] = ()  # where it may stream: what they hold
    ends_with_done: bool = True
    parameters: tuple[dict[str, Any], ...] = ()
    errors: tuple[int, ...] = ()
    is_open: bool = False
    headers: tuple[str, ...] = field(default=())


def _parameter(place: str, name: str, description: str, **schema: Any) -> dict[str, Any]:
    where = {"name": name, "in": place, "description": description, "schema": {"type": "string", **schema}}
    return {**where, "required": True} if place == "path" else where


_SESSION = _parameter("path", "session", "Its id.", minLength=1)
_NAMED = _parameter(
    "header", "X-Session-ID", "The conversation that this belongs to, as `session_id`.", pattern=f"^({SESSION_ID})?$"
)
_MODEL = _parameter("path", "model", "Its name, which may hold slashes.", minLength=1)
_FILE = _parameter("path", "file", "A part of the page.", enum=["start.js", "swagger-ui-bundle.js", "swagger-ui.css"])
_PAGE = (
    _parameter("query", "limit", "Most that are listed.", type="integer", minimum=1, maximum=1000, default=100),
    _parameter("query", "after", "List what follows this id."),
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "chat",
        "Go on with a conversation",
        "What was said before may be sent again each time, and is not read again; or the conversation is named, and "
        "`session_mode` is `append`.",
        body=ChatRequest,
        example={"messages": SAID, "temperature": 0, "max_tokens": 16},
        reply=replies.ChatCompletion,
        events=(replies.ChatChunk,),
        parameters=(_NAMED,),
        errors=(*READING, *QUEUING),
        headers=("X-Session-ID",),
    ),
    ("POST", "/v1/completions"): Operation(
        "completions",
        "Go on with texts",
        "Texts are taken as they are, and control tokens in them as control tokens.",
        body=CompletionRequest,
        example={"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
        reply=replies.Completion,
        events=(replies.Completion,),
        errors=(*READING, *QUEUING),
    ),
    ("POST", "/v1/responses"): Operation(
        "responses",
        "Respond to what was said",
        "OpenAI's Responses API, over chats.",
        body=ResponseRequest,
        example={"input": "Give me three tips for sleeping well.", "temperature": 0, "max_output_tokens": 16},
        reply=response_replies.ResponseObject,
        events=(
            response_replies.ResponseEvent,
            response_replies.ItemEvent,
            response_replies.PartEvent,
            response_replies.DeltaEvent,
            response_replies.DoneEvent,
            response_replies.ErrorEvent,
        ),
        ends_with_done=False,
        errors=(*READING, *QUEUING),
        headers=("X-Session-ID",),
    ),
    ("POST", "/v1/chat/completions/input_tokens"): Operation(
        "tokens",
        "Count a chat's prompt",
        "As a conversation that begins anew: what a session has read already is counted, too.",
        body=ChatRequest,
        example={"messages": SAID},
        reply=token_replies.InputTokens,
        parameters=(_NAMED,),
        errors=(*READING, *QUEUING),
    ),
    ("POST", "/tokenize"): Operation(
        "tokens",
        "Tokens of a text, or of messages",
        body=TokenizeRequest,
        example={"prompt": "Hello there"},
        reply=token_replies.Tokenized,
        errors=(*READING, 404, 429, 503),
    ),
    ("POST", "/detokenize"): Operation(
        "tokens",
        "The text of tokens",
        body=DetokenizeRequest,
        example={"tokens": [3, 4, 5]},
        reply=token_replies.Detokenized,
        errors=(*READING, 404, 429, 503),
    ),
    ("GET", "/v1/models"): Operation("models", "List the one model", reply=replies.ModelList, errors=(503,)),
    ("GET", "/v1/models/{model}"): Operation(
        "models", "Show the model", reply=replies.ModelCard, parameters=(_MODEL,), errors=(404, 503)
    ),
    ("GET", "/v1/sessions"): Operation(
        "sessions",
        "List the key's own conversations",
        "Those used last come first.",
        reply=replies.SessionList,
        parameters=_PAGE,
        errors=(400, 503),
    ),
    ("POST", "/v1/sessions"): Operation(
        "sessions",
        "Begin one",
        "Chats can also begin one by naming it, without this.",
        body=NewSession,
        needs_body=False,
        example={},
        status=201,
        reply=replies.SessionCard,
        errors=(*READING, 409, 503),
    ),
    ("GET", "/v1/sessions/{session}"): Operation(
        "sessions", "Show one", reply=replies.SessionCard, parameters=(_SESSION,), errors=(404, 503)
    ),
    ("DELETE", "/v1/sessions/{session}"): Operation(
        "sessions",
        "Delete one",
        "Nothing of it is left when this is answered.",
        reply=replies.SessionDeleted,
        parameters=(_SESSION,),
        errors=(404, 409, 503),
    ),
    ("POST", "/v1/sessions/{session}/fork"): Operation(
        "sessions",
        "Copy one",
        "They go on apart.",
        body=NewSession,
        needs_body=False,
        example={},
        status=201,
        reply=replies.SessionCard,
        parameters=(_SESSION,),
        errors=(*READING, 404, 409, 503),
    ),
    ("GET", "/health"): Operation("operations", "Whether requests are served", errors=(503,), is_open=True),
    ("GET", "/health/live"): Operation("operations", "Whether the process answers", is_open=True),
    ("GET", "/openapi.json"): Operation("documentation", "This document", reply=OpenApi),
    ("GET", "/docs"): Operation("documentation", "This document, to be read and tried", reply="text/html"),
    ("GET", "/docs/{file}"): Operation(
        "documentation", "A part of that page", reply="*/*", parameters=(_FILE,), errors=(404,)
    ),
}
