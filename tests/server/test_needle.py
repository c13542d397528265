"""`sinkahead eval needle`, run as a user runs it, on a model that knows no language."""

import json
from pathlib import Path

import pytest

from server import cli

SMALL = ["--capacity", "160", "--block", "8", "--chunk", "64", "--trials", "2", "--device", "cpu"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The ship left at dawn, and nobody looked back. " * 30)
    return path


def test_the_same_seed_gives_the_same_table(tiny_model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs, tables = [], []
    for seed, name in (("0", "a"), ("0", "b")):
        out = text.with_name(name)
        flags = ["--text", str(text), "--model", str(tiny_model), "--seed", seed, "--out", str(out)]
        assert cli.main(["eval", "needle", *SMALL, *flags]) == 0
        tables.append(capsys.readouterr().out)
        outputs.append(json.loads(out.read_text()))
    assert tables[0] == tables[1]
    assert outputs[0] == outputs[1]
    assert list(outputs[0]["right"]) == ["dense", "sinks", "sinks, fact pinned"]
    assert all(0 <= count <= 2 for counts in outputs[0]["right"].values() for count in counts)
    assert "Told rightly, of 2; 10 keys to choose from, capacity 160" in tables[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--capacity", "4000"], "--text: the text gives 1,410 tokens, and 16,128 are needed"),
        (["--block", "200"], "block must be between 1 and capacity - sinks = 160 - 4, got 200"),
        (["--device", "foo"], "device 'foo' is not usable"),
        (["--out", "/nowhere/x.json"], "--out: /nowhere is no folder"),
        (["--text", "/nowhere"], "No such file"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    tiny_model: Path, text: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "needle", *SMALL, "--text", str(text), "--model", str(tiny_model), *flags]
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["ppl", "needle"])
@pytest.mark.parametrize("flag", ["--chunk", "--capacity", "--block"])
def test_counts_below_one_are_refused(command: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["eval", command, "--text", "x", flag, "0"])
    assert f"argument {flag}: must be at least 1" in capsys.readouterr().err
