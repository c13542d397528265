"""OpenAI's Node SDK and the Vercel AI SDK, as their users run them: in Node, over a real server."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import MODEL, ROOT, Server

CLIENTS = ROOT / "tests" / "clients"

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="no Node here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the SDKs are installed, of the versions in the lock file."""
    folder = tmp_path_factory.mktemp("clients")
    for path in CLIENTS.iterdir():
        if path.suffix in (".json", ".mjs"):
            shutil.copy(path, folder)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(install, cwd=folder, check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tiny_model, tmp_path_factory.mktemp("server"), capacity=4096) as server:
        yield server.wait_until_ready()


@pytest.mark.parametrize("client", ["openai.mjs", "vercel.mjs"])
def test_what_its_users_do_works(folder: Path, server: Server, client: str) -> None:
    command = ["node", client, f"{server.url}/v1", MODEL]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
