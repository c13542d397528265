"""One server with the tiny model for all tests that leave it as it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import Server


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two places, and one request may wait."""
    folder = tmp_path_factory.mktemp("server")
    with Server(tiny_model, folder, max_running=2, max_waiting=1, max_body_bytes=300_000, ping_seconds=0.3) as server:
        yield server.wait_until_ready()
