"""What every request passes: ids, the log, leave for other origins' pages, TLS, and paths as people write them."""

import json
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.e2e.serving import CHAT, MODEL, Server, ask, wait_for

ORIGIN = "https://chat.example"


def stop(server: Server) -> None:
    server.signal(signal.SIGTERM)
    assert server.process.wait(60) == 0


@pytest.fixture(scope="module")
def keyed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    with Server(
        tiny_model, folder, api_keys="secret-key", requests_per_minute=60, cors_origins=ORIGIN, log_format="json"
    ) as server:
        yield server.wait_until_ready()


def lines_of(server: Server) -> list[dict[str, Any]]:
    """Of a log as JSON: its objects. The table at start-up is for people."""
    return [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]


def line_of(server: Server, request_id: str) -> dict[str, Any]:
    """It is written when the answer has gone, a moment later."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in lines_of(server) if line.get("request_id") == request_id and "status" in line]

    wait_for(lambda: len(lines()) == 1)
    return lines()[0]


@pytest.mark.parametrize("given", ["a", "A-1._:/+=@z", "x" * 128])
def test_a_sane_request_id_comes_back(server: Server, given: str) -> None:
    assert httpx.get(f"{server.url}/health", headers={"X-Request-ID": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", 'a"b', "é".encode(), "a,b", None])
def test_for_others_one_is_made(server: Server, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-ID": given}
    one, other = (httpx.get(f"{server.url}/health", headers=headers).headers["x-request-id"] for _ in range(2))
    assert re.fullmatch("[0-9a-f]{32}", one)
    assert one != other


def test_every_answer_has_one(server: Server, keyed: Server) -> None:
    for method, path, body, status in [
        ("GET", "/v1/models", None, 200),
        ("GET", "/nothing", None, 404),
        ("GET", CHAT, None, 405),
        ("POST", CHAT, b"{", 400),
        ("POST", CHAT, b"x" * 400_000, 413),
    ]:
        headers = {"X-Request-ID": "mine", "Content-Type": "application/json"}
        response = httpx.request(method, server.url + path, content=body, headers=headers)
        assert (response.status_code, response.headers["x-request-id"]) == (status, "mine")
    refused = httpx.get(f"{keyed.url}/v1/models", headers={"X-Request-ID": "mine"})
    assert (refused.status_code, refused.headers["x-request-id"]) == (401, "mine")
    streamed = server.post(ask(stream=True), **{"X-Request-ID": "stream"})
    assert streamed.headers["x-request-id"] == "stream"


def test_each_request_is_a_line_in_the_log_without_what_was_said(keyed: Server) -> None:
    key = {"Authorization": "Bearer secret-key"}
    answer = keyed.post(ask("whispered words"), **key, **{"X-Request-ID": "chat", "X-Session-ID": "lyon"})
    assert answer.status_code == 200
    line = line_of(keyed, "chat")
    usage = answer.json()["usage"]
    assert {name: line[name] for name in ("method", "route", "status", "bytes", "session", "finish")} == {
        "method": "POST", "route": CHAT, "status": 200, "bytes": len(answer.content), "session": "lyon",
        "finish": answer.json()["choices"][0]["finish_reason"],
    }  # fmt: skip
    for name in ("prompt_tokens", "completion_tokens"):
        assert line[name] == usage[name]
    assert line["cached_tokens"] == 0
    assert line["tokens_per_step"] >= 1
    assert 0 < line["first_ms"] <= line["ms"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert keyed.post(ask(), **{"X-Request-ID": "stranger"}).status_code == 401
    assert line_of(keyed, "stranger")["route"] == CHAT
    for request_id, path, route, status in [
        ("model", "/v1/models/some/name", "/v1/models/{model}", 404),
        ("session", "/v1/sessions/private", "/v1/sessions/{session}", 404),
        ("unknown", "/none?api_key=private", "none", 404),
    ]:
        assert httpx.get(keyed.url + path, headers={**key, "X-Request-ID": request_id}).status_code == status
        line = line_of(keyed, request_id)
        assert (line["route"], line["status"]) == (route, status)
    assert not re.search("whispered|private|secret-key", keyed.log)


def test_a_stream_that_is_cut_is_told_from_one_that_ends(keyed: Server) -> None:
    key = {"Authorization": "Bearer secret-key", "Content-Type": "application/json"}
    whole = keyed.post(ask(stream=True), **key, **{"X-Request-ID": "whole"})
    assert whole.content.endswith(b"[DONE]\n\n")
    assert "cut" not in line_of(keyed, "whole")
    body = json.dumps(ask(stream=True, max_tokens=1_000_000))
    url, headers = keyed.url + CHAT, key | {"X-Request-ID": "gone"}
    with httpx.stream("POST", url, content=body, headers=headers) as response:
        next(response.iter_bytes())
    line = line_of(keyed, "gone")
    assert (line["status"], line["cut"], line["finish"]) == (200, True, "none")


def test_pages_of_origins_that_are_set_may_ask(keyed: Server) -> None:
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-session-id"}
    leave = httpx.options(keyed.url + CHAT, headers={"Origin": ORIGIN, **asking})
    assert leave.status_code == 200
    assert leave.headers["access-control-allow-origin"] == ORIGIN
    assert {"authorization", "x-session-id"} <= set(leave.headers["access-control-allow-headers"].split(","))
    other = httpx.options(keyed.url + CHAT, headers={"Origin": "https://other.example", **asking})
    assert "access-control-allow-origin" not in other.headers
    refused = httpx.post(keyed.url + CHAT, headers={"Origin": ORIGIN})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)
    assert "X-Session-ID" in refused.headers["access-control-expose-headers"]
    key = {"Authorization": "Bearer secret-key", "Origin": ORIGIN}
    for _ in range(100):
        response = keyed.post(ask(max_tokens=1), **key)
        assert response.headers["access-control-allow-origin"] == ORIGIN
        if response.status_code == 429:
            break
    else:
        pytest.fail("no key has so many requests")


def test_no_other_origin_may_where_none_is_set(server: Server) -> None:
    headers = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    leave = httpx.options(server.url + CHAT, headers=headers)
    assert leave.status_code == 405
    assert "access-control-allow-origin" not in leave.headers


def test_head_wherever_there_is_get(server: Server) -> None:
    httpx.post(f"{server.url}/v1/sessions", json={"id": "for-head"})
    for path in ("/health", "/health/live", "/v1/models", "/v1/models/tiny", "/v1/sessions", "/v1/sessions/for-head"):
        head, get = httpx.head(server.url + path), httpx.get(server.url + path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
    assert httpx.head(server.url + CHAT).status_code == 405


def test_a_slash_at_the_end_changes_nothing(server: Server) -> None:
    for path in ("/health/", "/v1/models/", "/v1/models/tiny/", "/v1/sessions//"):
        assert httpx.get(server.url + path).status_code == 200
    assert server.post(ask(), CHAT + "/").status_code == 200


def test_names_of_models_may_hold_slashes(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path, served_model_name="org/name/of it") as server:
        server.wait_until_ready()
        for path in ("org/name/of%20it", "org%2Fname%2Fof%20it"):
            card = httpx.get(f"{server.url}/v1/models/{path}")
            assert (card.status_code, card.json()["id"]) == (200, "org/name/of it")
        stop(server)
        assert re.search(r"^\d{4}-\d\d-\d\dT[\d:.]+Z INFO server\.access_log: request method=GET ", server.log, re.M)


def test_chats_completions_and_models_go_without_v1_too(server: Server) -> None:
    assert server.post(ask(), "/chat/completions").status_code == 200
    assert server.post({"model": MODEL, "prompt": "a", "max_tokens": 2}, "/completions").status_code == 200
    assert httpx.get(f"{server.url}/models/").json() == httpx.get(f"{server.url}/v1/models").json()
    assert httpx.get(f"{server.url}/models/{MODEL}").json()["id"] == MODEL
    for path in ("/embeddings", "/sessions", "/responses", "/modelsx"):
        refused = httpx.get(server.url + path)
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "not_found"


def test_https_by_a_certificate_of_ones_own(tiny_model: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    for part in own.cert_chain_pems:
        part.write_to_path(tmp_path / "certificate.pem", append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    files = {"tls_certificate": tmp_path / "certificate.pem", "tls_key": tmp_path / "key.pem"}
    with Server(tiny_model, tmp_path, **files) as server:
        url = f"https://127.0.0.1:{server.port}"
        with httpx.Client(base_url=url, verify=context, timeout=60) as client:
            wait_for(lambda: client.get("/health").status_code == 200)
            assert client.post(CHAT, json=ask()).status_code == 200
            streamed = client.post(CHAT, json=ask(stream=True)).content
        assert streamed.endswith(b"[DONE]\n\n")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{server.port}/health")
        stop(server)
        assert f"address {url}" in " ".join(server.log.split())


def test_a_405_lists_all_methods_of_a_path(server: Server) -> None:
    for path, allowed in [("/v1/sessions", "GET, HEAD, POST"), ("/v1/sessions/x", "DELETE, GET, HEAD"), (CHAT, "POST")]:
        response = httpx.put(server.url + path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
