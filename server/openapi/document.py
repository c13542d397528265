"""The OpenAPI document, put together from the operations and the schemas of what they take and give."""

from importlib.metadata import version
from typing import Any

import msgspec

from server.errors import ErrorEnvelope
from server.openapi import bodies, structs
from server.openapi.operations import OPERATIONS, OpenApi, Operation
from server.replies import SessionCard
from server.settings import Settings

ABOUT = """\
An OpenAI-compatible server for conversations without end. Everything that is wrong is told as an `error`, with the
parameter at fault; nothing is accepted and ignored. A key, where the server has any, goes into `Authorization: Bearer`.
Every answer has an `X-Request-ID`, the client's own where it sends a sane one. Failures in the middle of a stream are
events of it.
"""
WHY = {
    400: "Something in the request is wrong; `param` names it.",
    401: "The key is missing or none of the server's.",
    404: "There is no such model, session or route.",
    405: "The route takes other methods, which `Allow` lists.",
    408: "The body did not come to its end in time.",
    409: "It is taken, or in use by another model.",
    413: "The body is too large.",
    415: "The body's `Content-Type` is not `application/json`.",
    429: "Too many requests wait, or the key has had all of its minute. `Retry-After` says when to come again.",
    500: "The server failed.",
    503: "The server loads, drains or restarts its worker, or found no place in time. `Retry-After` says when to come.",
}
EVERYWHERE = (405, 500)
HEADERS = {
    "X-Request-ID": ("The request's id, as in the server's log.", "string"),
    "X-Session-ID": ("The conversation that this belongs to.", "string"),
    "Retry-After": ("Seconds.", "integer"),
    "WWW-Authenticate": ("How to send a key.", "string"),
    "Allow": ("Methods that the route takes.", "string"),
}
# What can be asked of a session by its id.
LINKS = {
    name: {"operationId": name, "parameters": {"session": "$response.body#/id"}}
    for name in ("get_sessions_session", "post_sessions_session_fork", "delete_sessions_session")
}
OF_ERRORS = {401: "WWW-Authenticate", 405: "Allow", 429: "Retry-After", 503: "Retry-After"}


def build(settings: Settings, vocab_size: int | None = None) -> dict[str, Any]:
    """vocab_size: of the model, once it is known."""
    models = sorted({one.body for one in OPERATIONS.values() if one.body}, key=repr)
    asked = bodies.components(models, settings, vocab_size)
    taken = frozenset(asked)
    sent = {kind for one in OPERATIONS.values() for kind in (one.reply, *one.events) if not isinstance(kind, str)}
    sent = (sent - {OpenApi}) | {ErrorEnvelope}
    told = structs.components(sorted(sent, key=repr), taken)
    told["OpenApi"] = {"type": "object", "description": "An OpenAPI document.", "required": ["openapi"]}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        described = _Described(method, path, operation, settings, taken)
        paths.setdefault(path, {})[method.lower()] = described.whole
        if method == "GET":
            paths[path]["head"] = described.head
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "SinkAhead",
            "version": version("sinkahead"),
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}] if settings.has_keys else [{}, {"key": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in OPERATIONS.values())],
        "paths": paths,
        "components": {
            "schemas": asked | told,
            "responses": {f"Error{status}": _error(status) for status in WHY},
            "headers": {name: _header(*header) for name, header in HEADERS.items()},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "One of the server's keys."}
            },
        },
    }


class _Described:
    def __init__(self, method: str, path: str, operation: Operation, settings: Settings, taken: frozenset[str]) -> None:
        self._operation, self._settings, self._taken = operation, settings, taken
        words = [method.lower(), *(word.strip("{}") for word in path.replace("_", "/").split("/") if word != "v1")]
        self._id = "_".join(filter(None, words))

    @property
    def whole(self) -> dict[str, Any]:
        one = self._operation
        described: dict[str, Any] = {**self._head(self._id), "responses": self._responses()}
        if one.body is not None:
            content: dict[str, Any] = {"schema": {"$ref": f"{structs.PREFIX}{one.body.__name__}"}}
            if one.example is not None:
                model = {"model": self._settings.public_model_name} if "model" in one.body.model_fields else {}
                content["example"] = model | one.example
            described["requestBody"] = {"required": one.needs_body, "content": {"application/json": content}}
        return described

    @property
    def head(self) -> dict[str, Any]:
        """Nothing that is sent has a body."""
        statuses = [self._operation.status, *self._errors]
        headers = {status: _headers(OF_ERRORS.get(status)) for status in statuses}
        responses = {str(s): {"description": WHY.get(s, "Headers alone."), "headers": headers[s]} for s in statuses}
        return {**self._head(f"{self._id}_head"), "responses": responses}

    def _head(self, id_: str) -> dict[str, Any]:
        one = self._operation
        head: dict[str, Any] = {"operationId": id_, "tags": [one.tag], "summary": one.summary}
        if one.description:
            head["description"] = one.description
        if one.is_open:
            head["security"] = []
        return {**head, "parameters": list(one.parameters)} if one.parameters else head

    @property
    def _errors(self) -> list[int]:
        one = self._operation
        return sorted({*one.errors, *EVERYWHERE, *(() if one.is_open else (401,))})

    def _responses(self) -> dict[str, Any]:
        one = self._operation
        if isinstance(one.reply, str):
            content: dict[str, Any] = {one.reply: {"schema": {"type": "string"}}}
        else:
            content = {"application/json": {"schema": self._ref(one.reply)}}
        if one.events:
            content["text/event-stream"] = {"schema": self._stream()}
        fine: dict[str, Any] = {"description": "As asked.", "headers": _headers(*one.headers), "content": content}
        if one.reply is SessionCard:
            fine["links"] = LINKS
        return {
            str(one.status): fine,
            **{str(status): {"$ref": f"#/components/responses/Error{status}"} for status in self._errors},
        }

    def _stream(self) -> dict[str, Any]:
        """Of each event: there is no way to say more of a stream."""
        one = self._operation
        end = "The last one is `[DONE]`." if one.ends_with_done else "The last one has the whole."
        about = (
            f"With `stream`, of each event: its `data` is JSON. {end} Lines that begin with a colon are to be ignored."
        )
        held = [self._ref(event) for event in one.events] + [{"$ref": f"{structs.PREFIX}ErrorEnvelope"}]
        data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json"}
        data["contentSchema"] = {"anyOf": held}
        if one.ends_with_done:
            data = {"anyOf": [{"const": "[DONE]"}, data]}
        properties = {"data": data, "event": {"type": "string"}}
        return {"type": "object", "description": about, "properties": properties, "required": ["data"]}

    def _ref(self, struct: type[msgspec.Struct]) -> dict[str, Any]:
        return {"$ref": f"{structs.PREFIX}{structs.name(struct, self._taken)}"}


def _error(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"{structs.PREFIX}ErrorEnvelope"}}}
    return {"description": WHY[status], "headers": _headers(OF_ERRORS.get(status)), "content": content}


def _headers(*names: str | None) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-ID", *names) if name}


def _header(description: str, kind: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}
