"""Request bodies: read within a limit, parsed, validated. A refusal names the parameter and repeats no contents."""

import json
from asyncio import timeout, to_thread
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from server.errors import ApiError, ErrorBody, invalid

T = TypeVar("T", bound=BaseModel)

SILENCE_SECONDS = 30.0  # of a client that has announced more
LARGE_BODY = 100_000  # bytes that take longer to parse than other requests should wait
MAX_NAME = 100  # of a client's own parameter names, where they are told again


async def read(http: Request, max_bytes: int) -> bytes:
    """All of it, not yet looked at. Raises `ApiError`, or `ClientDisconnect` where the client went before the end."""
    media_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise _refusal(415, "Content-Type must be application/json.", "unsupported_media_type")
    return await _read_within(http, max_bytes)


async def validate(raw: bytes, schema: type[T]) -> T:
    """As `parse`, where it takes long in a thread."""
    return await to_thread(parse, raw, schema) if len(raw) > LARGE_BODY else parse(raw, schema)


def parse(raw: bytes, schema: type[T]) -> T:
    """Raises `ApiError`."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):  # of the numbers, too: Python reads none of more than 4,300 digits
        raise invalid("The body is not valid JSON.") from None
    if not isinstance(data, dict):
        raise invalid("The body must be a JSON object.")
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _explain(fault["type"], fault["msg"], _path(fault["loc"], data)) from None


async def _read_within(http: Request, max_bytes: int) -> bytes:
    too_large = _refusal(413, f"The body is larger than {max_bytes} bytes.", "request_too_large")
    announced = http.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    raw, chunks = bytearray(), aiter(http.stream())
    while True:
        try:
            async with timeout(SILENCE_SECONDS):
                raw += await anext(chunks)
        except StopAsyncIteration:
            return bytes(raw)
        except TimeoutError:
            raise _refusal(408, f"No more of the body came for {SILENCE_SECONDS:g} s.", "request_timeout") from None
        if len(raw) > max_bytes:
            raise too_large


def _refusal(status: int, message: str, code: str) -> ApiError:
    return ApiError(status, ErrorBody(message, "invalid_request_error", None, code))


def _explain(kind: str, message: str, path: str) -> ApiError:
    match kind:
        case "missing":
            return invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")
        case "extra_forbidden":
            return invalid(f"Unsupported parameter: '{path}' is not supported here.", path, "unsupported_parameter")
        case "model_type":
            message = "Input should be an object"
    return invalid(f"Invalid value for '{path or 'body'}': {message}.", path or None, "invalid_value")


def _path(location: Sequence[int | str], data: Any) -> str:
    """As in messages[0].content: what of `location` is in the client's data, without the schema's own turns."""
    path = ""
    for step, place in enumerate(location, 1):
        if isinstance(place, int):
            if isinstance(data, list):
                path, data = f"{path}[{place}]", data[place]
        elif isinstance(data, dict) and (place in data or step == len(location)):
            path, data = f"{path}.{place}" if path else place, data.get(place)
    return path.encode(errors="replace").decode()[:MAX_NAME]
