"""Runs all clients against a server with the tiny model: python -m tests.clients. Fetches them first."""

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.e2e.serving import MODEL, Server
from tests.tiny import save_tiny_model

HERE = Path(__file__).parent
PACKAGES = ["langchain-openai>=1,<2", "litellm>=1,<2"]


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = [[str(python_with(folder / "venv")), str(path)] for path in sorted(HERE.glob("*_client.py"))]
        if shutil.which("npm"):
            node = folder / "node"
            shutil.copytree(HERE, node)
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=node, check=True)
            commands += [["node", str(path)] for path in sorted(node.glob("*.mjs"))]
        else:
            print("There is no npm here: the clients in Node are left out", file=sys.stderr)
        (folder / "server").mkdir()
        failed = 0
        with Server(save_tiny_model(folder / "model"), folder / "server", capacity=4096) as server:
            server.wait_until_ready()
            for command in commands:
                print(f"== {Path(command[1]).name}", flush=True)
                failed += subprocess.run([*command, f"{server.url}/v1", MODEL], check=False).returncode != 0
        return failed


def python_with(folder: Path) -> Path:
    """An environment of their own: what they depend on is no business of the server's."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
