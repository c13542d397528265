"""Every failure that a client is told of, in OpenAI's envelope: {"error": {message, type, param, code}}."""

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody receives it


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    error: ErrorBody


class ApiError(Exception):
    """A failure to tell the client of. `retry_after`, in seconds, says when to come again."""

    def __init__(
        self, status: int, body: ErrorBody, retry_after: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(body.message)
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.headers = dict(headers or {})

    def encode(self) -> bytes:
        return msgspec.json.encode(ErrorEnvelope(self.body))

    def response(self) -> Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return Response(self.encode(), self.status, headers | self.headers, "application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, ErrorBody(message, "invalid_request_error", param, code))


def context_length_exceeded(message: str, param: str = "messages") -> ApiError:
    return invalid(message, param, "context_length_exceeded")


def model_not_found(model: str) -> ApiError:
    message = f"The model {model[:200]!r} does not exist here. GET /v1/models lists what does."
    return ApiError(404, ErrorBody(message, "invalid_request_error", "model", "model_not_found"))


def session_not_found(session: str) -> ApiError:
    message = (
        f"The session {session[:200]!r} does not exist, and nothing in the request tells what was said in it. "
        "POST /v1/sessions with its id begins it anew."
    )
    return ApiError(404, ErrorBody(message, "invalid_request_error", "session_id", "session_not_found"))


def previous_response_not_found(response: str) -> ApiError:
    message = f"Previous response with id {response[:200]!r} not found."
    body = ErrorBody(message, "invalid_request_error", "previous_response_id", "previous_response_not_found")
    return ApiError(404, body)


def item_not_found(item: str, param: str) -> ApiError:
    message = f"Item with id {item[:200]!r} not found."
    return ApiError(404, ErrorBody(message, "invalid_request_error", param, "item_not_found"))


def foreign_session(session: str) -> ApiError:
    message = f"The session {session[:200]!r} is another model's. It can be copied once it has gone on with this one."
    return ApiError(409, ErrorBody(message, "invalid_request_error", None, "foreign_session"))


def not_stored() -> ApiError:
    message = "The disk does not take the session at the moment; the server's log says why."
    return ApiError(503, ErrorBody(message, "server_error", None, "not_stored"), retry_after=5)


def private_session(session: str) -> ApiError:
    message = f"The session {session[:200]!r} was begun with 'store': false and is in memory only: send that each time."
    return ApiError(400, ErrorBody(message, "invalid_request_error", "store", "private_session"))


def session_exists(session: str) -> ApiError:
    message = f"The session {session[:200]!r} exists already."
    return ApiError(409, ErrorBody(message, "invalid_request_error", "id", "session_exists"))


def invalid_api_key(*, missing: bool) -> ApiError:
    why = "No API key was given" if missing else "The API key is not valid"
    message = f"{why}: send it as `Authorization: Bearer KEY`."
    body = ErrorBody(message, "invalid_request_error", None, "invalid_api_key")
    return ApiError(401, body, headers={"WWW-Authenticate": "Bearer"})


def rate_limited(per_minute: int, retry_after: int) -> ApiError:
    message = f"This key may send {per_minute} requests a minute. Try again later."
    return ApiError(429, ErrorBody(message, "rate_limit_error", None, "rate_limit_exceeded"), retry_after)


def queue_full() -> ApiError:
    message = "Too many requests are waiting already. Try again later."
    return ApiError(429, ErrorBody(message, "rate_limit_error", None, "queue_full"), retry_after=1)


def request_rejected() -> ApiError:
    message = "The worker died twice while it served this request. It is refused for some minutes; change it."
    return ApiError(400, ErrorBody(message, "invalid_request_error", None, "request_rejected"))


def slow_reader() -> ApiError:
    message = "The stream was read too slowly: too many tokens were waiting to be taken."
    return ApiError(500, ErrorBody(message, "server_error", None, "slow_reader"))


def unavailable(reason: str, retry_after: int = 2) -> ApiError:
    body = ErrorBody(f"The server is not ready: {reason}.", "server_error", None, "unavailable")
    return ApiError(503, body, retry_after)


def timed_out(seconds: float) -> ApiError:
    message = f"The request found no place within {seconds:g} seconds. Try again later."
    return ApiError(503, ErrorBody(message, "server_error", None, "timeout"), retry_after=1)


def engine_failed() -> ApiError:
    message = "The engine failed while it served this request. The request can be sent again."
    return ApiError(500, ErrorBody(message, "server_error", None, "engine_failed"))


def internal() -> ApiError:
    return ApiError(500, ErrorBody("The server failed while it served this request.", "server_error", None, "internal"))


def of_http(error: HTTPException) -> ApiError:
    """The framework's own refusals: unknown routes, wrong methods."""
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    return ApiError(error.status_code, ErrorBody(phrase, "invalid_request_error", None, code))


class ErrorMiddleware:
    """Answers what no handler caught, and raises it no further: the server would drop the client's connection.

    A failure after the response has begun cannot be answered. It is raised, so that the connection is cut, and nobody
    takes what came for the whole.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception:
            if started or scope["type"] != "http":
                raise
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await internal().response()(scope, receive, send)


def install(app: FastAPI, methods: Mapping[str, Iterable[str]]) -> None:
    """Let every error of `app` leave in the envelope; what no handler catches is `ErrorMiddleware`'s.

    methods: that there are at each path: the framework tells those of one route, and a path may have more.
    """

    @app.exception_handler(ApiError)
    async def refuse(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def refuse_http(http: Request, error: HTTPException) -> Response:
        response = of_http(error).response()
        response.headers.update(error.headers or {})
        if error.status_code == 405 and (allowed := methods.get(getattr(http.scope.get("route"), "path_format", ""))):
            response.headers["Allow"] = ", ".join(sorted(allowed))
        return response

    @app.exception_handler(ClientDisconnect)
    async def forget(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
