"""Imports go down only, and what plans and schedules knows no torch: the contracts stand in pyproject.toml."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
CONTRACTS = PYPROJECT["tool"]["importlinter"]["contracts"]
TORCH_FREE = next(contract["source_modules"] for contract in CONTRACTS if contract["type"] == "forbidden")


def test_contracts_hold() -> None:
    linter = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert linter.returncode == 0, linter.stdout + linter.stderr


@pytest.mark.parametrize("module", TORCH_FREE)
def test_loads_no_torch(module: str) -> None:
    """The linter reads the imports of our own packages; this sees what other libraries load, too."""
    code = f"import sys, {module}; sys.exit(', '.join(sys.modules.keys() & {{'torch', 'transformers'}}) or None)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
