"""Fixtures shared by all tests: the two models. Heavy imports wait until a test asks for one."""

from pathlib import Path

import pytest
from hypothesis import settings

# The same examples everywhere, in whatever time a busy machine takes: a failure is a change of ours.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The folder of the real default model; the first use fetches and converts it. Mark such tests `model`."""
    from server import model_files

    return model_files.resolve("default")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama with a byte-level tokenizer."""
    from tests.tiny import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))
