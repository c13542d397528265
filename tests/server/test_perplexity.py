"""`sinkahead eval ppl` on the tiny model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decoding.perplexity import losses
from server.cli import main
from server.perplexity import Run

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4


@pytest.fixture
def command(tiny_model: Path, tmp_path: Path) -> list[str]:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    sizes = ["--capacity", "64", "--block", "8", "--chunk", "16", "--device", "cpu"]
    return ["eval", "ppl", "--text", str(text), "--model", str(tiny_model), "--out", str(tmp_path / "out"), *sizes]


def results(command: list[str]) -> dict[str, Any]:
    folder = Path(command[command.index("--out") + 1])
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_a_second_run_takes_what_is_there(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "sinks against recompute, 251 positions" in first
    assert main(command) == 0
    assert capsys.readouterr().out == first
    assert {run["policy"] for run in results(command).values()} == {"dense", "window", "recompute", "sinks"}
    (plot,) = Path(command[7]).glob("*.png")
    assert plot.stat().st_size > 10_000


def test_a_cut_run_goes_on_to_the_same_numbers(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([*command, "--policies", "recompute"]) == 0
    ((name, whole),) = results(command).items()
    half = Run(**(whole | {"losses": whole["losses"][:100], "complete": False}))
    half.save(Path(command[7]))
    firsts = []

    def watched(*arguments: Any, first: int, chunk: int) -> Iterator[list[float]]:
        firsts.append(first)
        return losses(*arguments, first=first, chunk=chunk)

    monkeypatch.setattr("decoding.perplexity.losses", watched)
    assert main([*command, "--policies", "recompute"]) == 0
    assert results(command)[name]["losses"] == whole["losses"]
    assert firsts == [100]


def test_other_settings_are_another_run(command: list[str]) -> None:
    assert main([*command, "--policies", "sinks"]) == 0
    assert main([*command, "--policies", "sinks", "--sinks", "5"]) == 0
    assert len(results(command)) == 2


def test_a_gap_past_the_bound_fails(command: list[str]) -> None:
    """A bound that even equal losses exceed: minus 50 percent."""
    assert main([*command, "--policies", "sinks,recompute", "--max-gap", "-50"]) == 1
    assert main([*command, "--policies", "sinks,recompute", "--max-gap", "1000"]) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--policies", "sinks,magic"], "--policies magic: there are dense, window, recompute, sinks"),
        (["--first", "9999"], "--first 9999: the text gives"),
        (["--block", "61"], "block must be between 1 and capacity - sinks = 64 - 4, got 61"),
        (
            ["--policies", "dense,sinks", "--capacity", "8", "--block", "8"],
            "--sinks, --capacity, --block: block must be",
        ),
        (["--max-gap", "3"], "--max-gap compares sinks with recompute: --policies must name both"),
        (["--capacity", "200000"], "--capacity 200000: the model was trained on 131072 tokens"),
        (["--device", "foo"], "device 'foo' is not usable"),
        (["--text", "/nowhere"], "--text /nowhere"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    command: list[str], flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--policies", "sinks", *flags]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
