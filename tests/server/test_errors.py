"""The envelope around all that goes wrong in a handler."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import Response, StreamingResponse

from server import errors


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI(redirect_slashes=False)
    app.add_middleware(errors.ErrorMiddleware)
    errors.install(app, {})

    @app.get("/bug")
    async def bug() -> Response:
        raise ZeroDivisionError("a secret")

    @app.get("/full")
    async def full() -> Response:
        raise errors.queue_full()

    @app.get("/broken-stream")
    async def broken_stream() -> Response:
        async def pieces() -> Any:
            yield b"half"
            raise ZeroDivisionError("a secret")

        return StreamingResponse(pieces())

    return app


def get(app: FastAPI, path: str) -> httpx.Response:
    async def run() -> httpx.Response:
        # Raises what the application raises: where the response is complete that would cost a client its connection.
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get(path)

    return asyncio.run(run())


def test_a_bug_is_a_500_without_its_story(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    response = get(app, "/bug")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text


def test_a_refusal_says_when_to_come_again(app: FastAPI) -> None:
    response = get(app, "/full")
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_unknown_routes_and_wrong_methods_keep_to_the_envelope(app: FastAPI) -> None:
    assert get(app, "/nowhere").json()["error"]["code"] == "not_found"
    assert get(app, "/full/").status_code == 404


def test_a_response_that_breaks_off_is_cut_and_not_completed(app: FastAPI) -> None:
    with pytest.raises(ZeroDivisionError):
        get(app, "/broken-stream")
