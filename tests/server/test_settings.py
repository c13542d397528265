"""The layers, in their order, and errors that lead to the setting at fault."""

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from decoding.turn import Drafting
from server.settings import CONFIGS, ENV_PREFIX, Settings, SettingsError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "my.yaml"


def test_each_layer_wins_over_the_one_below(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("host: from.yaml\nport: 1\ncapacity: 512\n")
    monkeypatch.setenv("SINKAHEAD_HOST", "from.environment")
    monkeypatch.setenv("SINKAHEAD_PORT", "2")
    settings = Settings.load({"config": str(config), "port": "3"})
    assert (settings.port, settings.host, settings.capacity, settings.block) == (3, "from.environment", 512, 64)


def test_the_environment_names_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("port: 1")
    monkeypatch.setenv("SINKAHEAD_CONFIG", str(config))
    assert Settings.load().port == 1


def test_an_empty_file_and_an_empty_variable_change_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("# nothing yet\n")
    monkeypatch.setenv("SINKAHEAD_PORT", "")
    assert Settings.load({"config": config}).port == 8000


def test_default_yaml_states_the_built_in_values(config: Path) -> None:
    """--help shows the built-in values as defaults: they must be what a start without flags gives."""
    config.touch()
    assert Settings.load().model_dump(exclude={"config"}) == Settings.load({"config": config}).model_dump(
        exclude={"config"}
    )


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_files_load(path: Path) -> None:
    assert Settings.load({"config": path}).config == path


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"port": "70000"}, "--port: '70000': input should be less than or equal to 65535"),
        ({"capacity": "many"}, "--capacity: 'many': input should be a valid integer"),
        ({"sinks": "3"}, "--sinks: '3': input should be 'pinned', or '3': input should be greater than or equal to 4"),
        ({"memory": "4 lots"}, "--memory: "),
        ({"memory": "0"}, "--memory: '0': "),
        ({"device": "gpu"}, "--device: 'gpu': "),
        ({"block": "0"}, "--block: '0': "),
        ({"block": "1021"}, "block (1021) may be at most capacity - sinks (1024 - 4)"),
        ({"block": "1000", "sinks": "100"}, "block (1000) may be at most capacity - sinks (1024 - 100)"),
        ({"sinks": "513"}, "sinks (513) may take at most half of capacity (1024)"),
        ({"config": "/no/such.yaml"}, "No such file or directory: '/no/such.yaml'"),
        ({"max_waiting": "-1", "port": "x"}, "--max-waiting: '-1': "),
        ({"strategy": "fast"}, "--strategy: 'fast': input should be 'auto', 'lookahead', 'jacobi' or 'autoregressive'"),
        ({"window": "wide"}, "--window: 'wide': input should be a valid integer"),
        ({"window": "5"}, "window: strategy 'auto' has no such size"),
        ({"strategy": "jacobi", "guesses": "5"}, "guesses: strategy 'jacobi' has no such size"),
        ({"strategy": "jacobi", "window": "0"}, "window: it must be between 1 and 128, not 0"),
        ({"strategy": "lookahead", "ngram": "1000000000000"}, "ngram: it must be between 2 and 128, not 1000000000000"),
        (
            {"strategy": "lookahead", "window": "15", "ngram": "5", "guesses": "18"},
            "take 132 rows of a step, and there",
        ),
        ({"strategy": "jacobi", "max_rows": "7"}, "window: these sizes take 8 rows of a step, and there are 7"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_given(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings.load(flags)
    assert message in str(error.value)


def test_a_wrong_variable_is_named_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKAHEAD_PORT", "x")
    with pytest.raises(SettingsError, match=r"^SINKAHEAD_PORT: 'x': input should be a valid integer"):
        Settings.load()


def test_a_variable_that_is_no_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKAHEAD_PROT", "1")
    with pytest.raises(SettingsError, match=r"^SINKAHEAD_PROT: no such setting; did you mean SINKAHEAD_PORT\?"):
        Settings.load()


def test_the_cache_folder_is_a_variable_but_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKAHEAD_HOME", "/somewhere")
    Settings.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capcity: 3", "capcity in {}: no such setting; did you mean capacity?"),
        ("port: x", "port in {}: 'x': input should be a valid integer"),
        ("port: [1", "the settings file cannot be read: while parsing"),
        ("- port", "{}: a settings file holds lines of `name: value`"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    with pytest.raises(SettingsError) as error:
        Settings.load({"config": config})
    assert message.format(config) in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings.load().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({}, "SmolLM2-135M-Instruct"),
        ({"served_model_name": "mine"}, "mine"),
        ({"model": "org/name"}, "org/name"),
        ({"model": "FOLDER"}, "folder"),
        ({"model": "FOLDER/x.Q4_1.gguf"}, "x.Q4_1"),
    ],
)
def test_public_model_name(flags: dict[str, str], name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.joinpath("x.Q4_1.gguf").touch()
    flags = {key: value.replace("FOLDER", str(folder)) for key, value in flags.items()}
    assert Settings.load(flags).public_model_name == name


def test_engine_options() -> None:
    """Every one of them comes from the setting of its name."""
    flags = {
        "device": "cpu",
        "dtype": "bfloat16",
        "trust_model": "true",
        "threads": "3",
        "policy": "window",
        "capacity": "512",
        "block": "32",
        "max_rows": "77",
    }
    options = Settings.load(flags | {"memory": "4GiB"}).engine_options(Path("/models/a"))
    assert options.model == "/models/a"
    assert options.memory_bytes == 4 << 30
    for name, value in flags.items():
        assert str(getattr(options, name)).lower() == value
    assert Settings.load().engine_options(Path("/models/a")).memory_bytes == 0


def test_drafting_comes_from_four_settings(config: Path) -> None:
    """What a file sets, a flag can take back."""
    config.write_text("strategy: lookahead\nwindow: 3\nngram: 5\nguesses: 0\n")
    flags: dict[str, object] = {"config": config}
    want = Drafting(strategy="lookahead", window=3, ngram=5, guesses=0)
    assert Settings.load(flags).engine_options(Path("/models/a")).drafting == want
    flags |= {"strategy": "jacobi", "ngram": "null", "guesses": "null"}
    assert Settings.load(flags).engine_options(Path("/models/a")).drafting == Drafting(strategy="jacobi", window=3)
    assert Settings.load().engine_options(Path("/models/a")).drafting == Drafting()
