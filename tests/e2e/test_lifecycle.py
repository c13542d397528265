"""Loading, death of the worker, end by signals: each an ordinary path."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.e2e.serving import Server, ask, body_of, long, receive_until, wait_for


@pytest.fixture(scope="module")
def mortal(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose end, in the last test, is no concern of other modules."""
    folder = tmp_path_factory.mktemp("mortal")
    with Server(tiny_model, folder, max_running=2, max_waiting=2, drain_seconds=2) as server:
        yield server


def test_while_the_model_loads_the_server_says_so(mortal: Server) -> None:
    assert httpx.get(f"{mortal.url}/health/live").status_code == 200
    health = httpx.get(f"{mortal.url}/health")
    refused = mortal.post(ask())
    if "loaded in" not in mortal.log:
        assert health.status_code == refused.status_code == 503
        assert "loading" in health.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
    mortal.wait_until_ready()
    for row in ("model", "dtype", "device", "sinks", "capacity", f"http://127.0.0.1:{mortal.port}"):
        assert row in mortal.log


def test_a_killed_worker_fails_what_ran_and_is_replaced(mortal: Server) -> None:
    mortal.wait_until_ready()
    with ExitStack() as stack:
        stream = stack.enter_context(mortal.stream())
        whole = stack.enter_context(mortal.queued(ask(max_tokens=100_000)))
        late = stack.enter_context(mortal.queued(ask()))
        mortal.worker.kill()
        received = receive_until(stream, b"0\r\n\r\n")
        assert received.count(b'data: {"error":{"message":') == 1
        assert received.endswith(b"\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        assert b"500 Internal Server Error" in receive_until(whole, b'"}}')
        assert httpx.get(f"{mortal.url}/health/live").status_code == 200
        assert httpx.get(f"{mortal.url}/health").status_code == 503
        assert mortal.post(ask()).status_code == 503
        assert b"200 OK" in receive_until(late, b'"kept":true}}')  # it waited, and the next worker served it
    assert mortal.post(ask()).status_code == 200


def test_a_worker_that_cannot_be_started_is_tried_again(tiny_model: Path, tmp_path: Path) -> None:
    """There is no room for its files at the moment."""
    folder, aside = tmp_path / "t", tmp_path / "aside"
    folder.mkdir()
    with Server(tiny_model, folder, sessions_folder=tmp_path / "sessions") as server:
        server.wait_until_ready()
        folder.rename(aside)
        server._log = aside / "server.log"
        server.worker.kill()
        wait_for(lambda: "cannot be restarted" in server.log)
        assert server.post(ask()).status_code == 503
        aside.rename(folder)
        server._log = folder / "server.log"
        server.wait_until_ready()
        assert server.post(ask()).status_code == 200


def test_a_worker_that_stands_still_is_replaced(tiny_model: Path, tmp_path: Path) -> None:
    """It is alive, and no death is to be seen: only that it owes a step. An idle one owes nothing."""
    with Server(tiny_model, tmp_path, stall_seconds=2) as server:
        server.wait_until_ready()
        idle = server.worker.pid
        time.sleep(3)
        with server.stream() as stream:
            assert server.worker.pid == idle
            server.worker.suspend()
            received = receive_until(stream, b"0\r\n\r\n")
            assert received.count(b'data: {"error":{"message":') == 1
        assert "sent nothing for 2 s" in server.log
        wait_for(lambda: server.health() == 200)
        assert server.post(ask()).status_code == 200
        assert server.worker.pid != idle


def test_after_sigterm_short_answers_end_and_long_ones_are_ended(mortal: Server) -> None:
    mortal.wait_until_ready()
    with mortal.stream() as endless, mortal.request(ask(max_tokens=100, stream=True)) as short:
        receive_until(short, b'"content":"')
        mortal.signal(signal.SIGTERM)
        wait_for(lambda: mortal.health() == 503)
        assert mortal.post(ask()).status_code == 503
        assert b'"finish_reason":"length"' in receive_until(short, b"data: [DONE]\n\n")
        received = receive_until(endless, b"data: [DONE]\n\n")
        assert b'data: {"error":{"message":"The server is not ready: it is shutting down."' in received
    assert mortal.process.wait(20) == 0
    assert "Traceback" not in mortal.log


def test_the_time_limit_ends_an_answer_and_a_second_signal_ends_all_at_once(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path, drain_seconds=60, request_timeout_seconds=4) as server:
        server.wait_until_ready()
        with server.request(long()) as stream:
            body = body_of(receive_until(stream, b"0\r\n\r\n"))
            assert body.endswith(b'"finish_reason":"length"}]}\n\ndata: [DONE]\n\n')
        worker = server.worker
        with server.stream():
            server.signal(signal.SIGINT)
            wait_for(lambda: server.health() == 503)
            started = time.monotonic()
            server.signal(signal.SIGINT)
            assert server.process.wait(20) == 130
            assert time.monotonic() - started < 15
        assert not worker.is_running()


def test_a_signal_while_loading_ends_in_order(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path) as server:
        server.signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log
    assert not list(tmp_path.glob("sinkahead-*"))


def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_line(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "broken"
    model.mkdir()
    for file in tiny_model.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "model.safetensors").write_bytes(b"no tensors")
    with Server(model, tmp_path) as server:
        assert server.process.wait(60) == 2
        assert "Traceback" not in server.log
        assert "sinkahead: tiny cannot be served: " in server.log.splitlines()[-1]


def test_a_dense_server_refuses_what_does_not_fit_and_ends_what_fills_it(tiny_model: Path, tmp_path: Path) -> None:
    with Server(tiny_model, tmp_path, policy="dense", capacity=128) as server:
        server.wait_until_ready()
        refused = server.post(ask("x" * 200))
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        answer = server.post(ask(max_tokens=1000)).json()
        assert answer["usage"]["total_tokens"] == 129
        assert answer["choices"][0]["finish_reason"] == "length"
