"""A small part of what `python -m benchmarks.contract` asks: requests made of the OpenAPI document, and all checks."""

from pathlib import Path

from benchmarks.contract import KEY, check
from tests.e2e.serving import Server


def test_the_server_keeps_to_its_document(tiny_model: Path, tmp_path: Path) -> None:
    flags = ["--phases=examples,fuzzing,stateful", "--max-examples=3", "--seed=1"]
    with Server(tiny_model, tmp_path, api_keys=KEY, max_output_tokens=4, max_waiting=300) as server:
        server.wait_until_ready()
        assert check(server.url, *flags, folder=tmp_path) == 0
