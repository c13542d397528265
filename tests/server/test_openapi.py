"""The OpenAPI document tells what is: all routes, and bodies that the schemas take."""

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from server.api.documentation import UI
from server.app import build_app
from server.errors import ErrorEnvelope
from server.keys import Keys
from server.openapi import document, structs
from server.openapi.bodies import NOTES
from server.openapi.operations import OPERATIONS
from server.scheduler import Scheduler
from server.service import Service
from server.settings import Settings


def app(**flags: Any) -> FastAPI:
    settings = Settings.load({"served_model_name": "m", **flags})
    return build_app(Service(settings, Scheduler(1, 1, 1), Keys(settings.all_keys, 0)))


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return document.build(Settings.load({"served_model_name": "m", "max_output_tokens": 77}), 300)


def routes(of: FastAPI) -> set[tuple[str, str]]:
    """Methods and paths, of what routers include, too."""
    found = set()
    stack: list[Any] = list(of.routes)
    while stack:
        route = stack.pop()
        if router := getattr(route, "original_router", None):
            stack += router.routes
        else:
            found |= {(method, route.path_format) for method in route.methods}
    return found


def test_every_route_is_told_of_and_nothing_else(told: dict[str, Any]) -> None:
    written = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert written == routes(app())
    assert len(written) > 20


def test_head_is_wherever_get_is() -> None:
    found = routes(app())
    assert {path for method, path in found if method == "GET"} == {path for method, path in found if method == "HEAD"}


def test_what_it_refers_to_is_there(told: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/([^"]+)"', json.dumps(told)))
    for reference in references:
        place = told
        for step in reference.split("/"):
            place = place[step]
    assert {reference.rpartition("/")[2] for reference in references} >= {"ChatRequest", "ErrorEnvelope", "Error429"}
    assert set(told["components"]["schemas"]) <= {reference.rpartition("/")[2] for reference in references}


@pytest.mark.parametrize("key", [key for key, one in OPERATIONS.items() if one.body], ids="-".join)
def test_examples_are_taken(told: dict[str, Any], key: tuple[str, str]) -> None:
    method, path = key
    content = told["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]
    body = OPERATIONS[key].body
    assert body is not None
    body.model_validate(content["example"])
    assert content["schema"]["$ref"] == f"{structs.PREFIX}{body.__name__}"


def test_what_the_settings_say_is_in_it(told: dict[str, Any]) -> None:
    properties = told["components"]["schemas"]["ChatRequest"]["properties"]
    assert properties["model"]["enum"] == ["m"]
    assert {"type": "integer", "minimum": 1, "maximum": 77} in properties["max_tokens"]["anyOf"]
    assert properties["stop_token_ids"]["anyOf"][0]["items"]["exclusiveMaximum"] == 300
    assert properties["temperature"]["default"] == 1.0
    assert {"type": "null"} in properties["temperature"]["anyOf"]


def test_notes_are_of_what_there_is(told: dict[str, Any]) -> None:
    names = {name for schema in told["components"]["schemas"].values() for name in schema.get("properties", ())}
    assert set(NOTES) <= names


def test_every_error_has_the_envelope(told: dict[str, Any]) -> None:
    assert structs.components([ErrorEnvelope], frozenset())["ErrorEnvelope"]["required"] == ["error"]
    for response in told["components"]["responses"].values():
        assert response["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorEnvelope")
        assert "X-Request-ID" in response["headers"]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    with TestClient(app()) as client:
        page = client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert {part for part in parts if part != "data:,"} == {
            "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/start.js",
        }  # fmt: skip
        for part in parts:
            if part != "data:,":
                assert client.get(part).status_code == 200
        assert client.get("/docs/README.md").status_code == client.get("/docs/..%2fpage.html").status_code == 404
        assert client.get("/openapi.json").json()["openapi"] == "3.1.0"
        small = client.get("/docs/swagger-ui.css", headers={"Accept-Encoding": "gzip"})
        plain = client.get("/docs/swagger-ui.css", headers={"Accept-Encoding": ""})
        assert (small.headers["content-encoding"], small.text) == ("gzip", plain.text)
        assert "content-encoding" not in plain.headers


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/docs/start.js"])
def test_it_is_guarded_by_keys(path: str) -> None:
    with TestClient(app(api_keys="k")) as client:
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer k"}).status_code == 200


def test_the_pages_parts_are_those_of_npm_and_small() -> None:
    for line in (UI / "SHA256SUMS").read_text().splitlines():
        checksum, name = line.split()
        assert hashlib.sha256(gzip.decompress((UI / f"{name}.gz").read_bytes())).hexdigest() == checksum
    assert sum(path.stat().st_size for path in Path(UI).iterdir()) < 600_000
