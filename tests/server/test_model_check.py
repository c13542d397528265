"""`sinkahead models check` on folders of several kinds."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from server import cli
from tests.families import FAMILIES, SIZES, build
from tests.tiny import SPECIAL_TOKENS, build_tokenizer, save_tiny_model

SMALL = ["--capacity", "64", "--block", "8", "--device", "cpu"]


def test_says_how_a_model_is_served_and_what_a_session_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "mine")
    assert cli.main(["models", "check", *SMALL, "--dtype", "float32", str(tmp_path / "mine")]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        "mine is served",
        "model mine (llama, trained on 131,072 tokens)",
        "layers 2, 2 key and value heads each: 2 follow the policy",
    ]
    each = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head_dim, bytes
    # window, room behind it, keys read ahead in whole tiles, sinks, what can be undone
    assert f"memory {each * (64 + 192 + 64 + 32 + 72) / 1024:.1f} KiB a session" in lines


def test_describes_windows_and_partial_rotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in {
        "gemma3_text, window 9": "3, 2 key and value heads each: 2 keep a window of 9 tokens; 1 follow the policy",
        "gemma3_text, window 50": "3, 2 key and value heads each: 2 keep a window of 50 tokens; 1 follow the policy",
        "smollm3": "2 follow the policy; 1 follow the policy without rotation",
        "phi": "3 follow the policy with 8 of 16 elements rotated",
    }.items():
        folder = tmp_path / name
        config = FAMILIES[name].config.__class__(**FAMILIES[name].config.to_dict() | {"vocab_size": 259})
        build(config).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        assert cli.main(["models", "check", *SMALL, str(folder)]) == 0
        assert words in " ".join(capsys.readouterr().out.split())


def refusal(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert cli.main(["models", "check", *SMALL, *flags, str(folder)]) == 1
    captured = capsys.readouterr()
    assert "is served" not in captured.out
    return captured.err.splitlines()[-1]


def test_says_why_a_model_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AutoConfig.for_model("gpt2").save_pretrained(tmp_path)
    assert "is not served: model type 'gpt2' cannot be served: it learned absolute" in refusal(tmp_path, capsys)
    build(AutoConfig.for_model("olmo", **SIZES, num_key_value_heads=2)).save_pretrained(tmp_path)
    assert "'olmo' is not proven here; serve --trust-model" in refusal(tmp_path, capsys)
    assert "the model has no chat template" in refusal(tmp_path, capsys, "--trust-model")
    build_tokenizer().save_pretrained(tmp_path)
    assert "the tokenizer gives ids up to 258, the model takes 97" in refusal(tmp_path, capsys, "--trust-model")


def test_a_block_that_leaves_no_room_for_an_empty_chat_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a server would start that refuses every request."""
    save_tiny_model(tmp_path)
    assert len(SPECIAL_TOKENS) == 3
    said = refusal(tmp_path, capsys, "--block", "60")
    assert "begins every chat with 6 tokens that are pinned" in said
    assert "blocks of 60 in a capacity of 64 leave room for 4" in said


def test_a_broken_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    assert "cannot be loaded: " in refusal(tmp_path, capsys)
    (tmp_path / "config.json").write_text("{")
    assert "cannot be loaded: " in refusal(tmp_path, capsys)
