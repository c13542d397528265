"""The OpenAPI document against a server with a tiny random model: thousands of requests made of it by schemathesis.

    python -m benchmarks.contract --phases examples,coverage,fuzzing,stateful --max-examples 50

All of its checks: no failure of the server's, no answer that the document does not tell of, nothing accepted that it
forbids, no key ignored. What it says is printed; it ends with 1 where anything is wrong.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.server_process import ServerProcess

CONFIG = Path(__file__).with_suffix(".toml")
KEY = "contract"
SETTINGS = {
    "served_model_name": "tiny", "dtype": "float32", "threads": 1, "memory": "64MiB", "api_keys": KEY,
    "max_output_tokens": 4, "max_prompt_tokens": 20_000, "max_sessions": 1000, "max_waiting": 300,
}  # fmt: skip


def check(url: str, *flags: str, folder: Path, key: str = KEY) -> int:
    """Schemathesis' exit code; its own files stay in `folder`."""
    command = [
        *(sys.executable, "-c", "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"),
        f"--config-file={CONFIG}", "run", f"{url}/openapi.json", f"--header=Authorization: Bearer {key}",
        "--checks=all", "--continue-on-failure", "--request-timeout=300", "--max-response-time=300", *flags,
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--max-examples", type=int, default=50, help="of each operation, in fuzzing")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    from tests.tiny import save_tiny_model

    flags = [f"--phases={arguments.phases}", f"--max-examples={arguments.max_examples}", f"--seed={arguments.seed}"]
    with tempfile.TemporaryDirectory() as folder, ServerProcess(save_tiny_model(Path(folder)), **SETTINGS) as server:
        return check(f"http://127.0.0.1:{server.port}", *flags, folder=Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
