"""A real server in a process of its own, and raw sockets to talk to it: what an in-process client hides, these show."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from tests.e2e.documented import undocumented

ROOT = Path(__file__).parents[2]
MODEL = "tiny"
CHAT = "/v1/chat/completions"
PATIENCE = 60.0  # for what takes a second on a machine that is not busy


def ask(content: str = "hi", **changes: Any) -> dict[str, Any]:
    """A body. With "hi" and temperature 0 the tiny model never ends by itself, with "Hello there" after 12 tokens."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8}
    return body | changes


def long(**changes: Any) -> dict[str, Any]:
    """A stream that lasts until somebody ends it."""
    return ask(max_tokens=1_000_000, stream=True, **changes)


class Server:
    """`sinkahead serve` on a free port of the loopback interface, from `with` to `with`'s end."""

    def __init__(self, model: Path, folder: Path, **settings: Any) -> None:
        self._log = folder / "server.log"
        settings = {"dtype": "float32", "threads": 1, "memory": "64MiB", "max_output_tokens": 1_000_000} | settings
        settings = {"sessions_folder": folder / "sessions"} | settings
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "server.cli", "serve", f"--model={model}", f"--served-model-name={MODEL}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SINKAHEAD_")}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port=0", *flags], cwd=ROOT, env=environment | {"TMPDIR": str(folder)},
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.port = 0

    def __enter__(self) -> Self:
        address = re.compile(r"https?://127\.0\.0\.1:(\d+), loading")
        wait_for(lambda: address.search(self.log) is not None)
        self.port = int(address.findall(self.log)[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        assert not psutil.wait_procs(workers, timeout=PATIENCE)[1]
        if error is None:
            missing = undocumented(self.log)
            assert not missing, f"the OpenAPI document does not tell of {missing}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def worker(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "spawn_main" in " ".join(child.cmdline()))

    def wait_until_ready(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or self.health() == 200)
        assert self.process.poll() is None, self.log
        return self

    def health(self) -> int:
        return httpx.get(f"{self.url}/health").status_code

    def post(self, body: dict[str, Any] | bytes, path: str = CHAT, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(
            f"{self.url}{path}",
            content=content,
            headers={"Content-Type": "application/json"} | headers,
            timeout=PATIENCE,
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @contextlib.contextmanager
    def connect(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            yield connection

    @contextlib.contextmanager
    def stream(self) -> Iterator[socket.socket]:
        """An endless one, which runs. Who was here before may have to be forgotten first."""
        with contextlib.ExitStack() as stack:
            while b"200 OK" not in receive_until(connection := stack.enter_context(self.request(long())), b"\r\n\r\n"):
                stack.close()
            receive_until(connection, b'"content":"')
            yield connection

    @contextlib.contextmanager
    def queued(self, body: dict[str, Any]) -> Iterator[socket.socket]:
        """A request that waits, while streams take all places."""
        with contextlib.ExitStack() as stack:
            while not is_silent(connection := stack.enter_context(self.request(body))):
                stack.close()
            yield connection

    @contextlib.contextmanager
    def request(self, body: dict[str, Any]) -> Iterator[socket.socket]:
        """A request of its own connection, sent, not yet answered. At the end the client goes away."""
        with self.connect() as connection:
            send(connection, body)
            yield connection


def is_silent(connection: socket.socket, seconds: float = 0.2) -> bool:
    """Whether nothing comes: neither an answer nor an end."""
    return not select.select([connection], [], [], seconds)[0]


def send(connection: socket.socket, body: dict[str, Any], path: str = CHAT) -> None:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)


def receive_until(connection: socket.socket, mark: bytes) -> bytes:
    received = b""
    while mark not in received:
        chunk = connection.recv(65536)
        assert chunk, f"the connection ended without {mark!r}: {received[-1000:]!r}"
        received += chunk
    return received


def body_of(response: bytes) -> bytes:
    """Of a raw response in HTTP chunks: what they hold, together."""
    rest, content = response.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        content, rest = content + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return content


def wait_for(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
