"""The command line, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server import cli
from server.settings import Settings

NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:9"}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server.cli", *arguments]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_help_names_every_setting_in_one_line_each() -> None:
    process = run("serve", "--help")
    assert process.returncode == 0
    for name, field in Settings.model_fields.items():
        (line,) = [line for line in process.stdout.splitlines() if f"--{name.replace('_', '-')} " in line]
        assert len(line) <= 120
        assert str(field.description) in line


def test_version() -> None:
    assert run("--version").stdout == "sinkahead 0.1.0\n"


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, server.cli; server.cli.build_parser(); print(*sys.modules.keys() & {'torch', 'transformers'})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--port", "x"], "sinkahead: --port: 'x': input should be a valid integer"),
        (["serve", "--prot", "1"], "unrecognized arguments: --prot"),
        (["serve", "--block", "2000"], "sinkahead: block (2000) may be at most capacity"),
        (["models", "fetch", "nothing"], "sinkahead: 'nothing' is neither 'default' nor a folder"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    process = run(*arguments)
    assert process.returncode == 2
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def test_only_flags_that_are_given_reach_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKAHEAD_PORT", "8001")
    arguments = vars(cli.build_parser().parse_args(["serve", "--capacity", "512"]))
    arguments.pop("run")
    assert arguments == {"capacity": "512"}


def test_fetch_prints_the_folder_alone(tiny_model: Path) -> None:
    process = run("models", "fetch", str(tiny_model))
    assert process.stdout == f"{tiny_model}\n"
    assert process.stderr.startswith("Ready after ")


def test_a_hub_out_of_reach(tmp_path: Path) -> None:
    process = run("models", "fetch", "org/name", HF_HOME=str(tmp_path), **NO_HUB)
    assert process.returncode == 2
    assert "org/name is no folder here" in process.stderr
    assert "the hub is out of reach and no copy is on this machine" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_copy_of_the_hub_works_without_it(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    snapshot.joinpath("config.json").write_text("{}")
    repository.joinpath("refs").mkdir()
    repository.joinpath("refs", "main").write_text(commit)
    process = run("models", "fetch", "org/name", HF_HOME=str(tmp_path), **NO_HUB)
    assert process.stdout == f"{snapshot}\n"
