"""When bits are kept, when not, and that the comparison at start-up sees the difference."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cache import sink_group
from cache.span import Span, causal
from decoding.build import build
from decoding.errors import ModelRefusedError
from decoding.exactness import make_exact
from decoding.model import Model
from decoding.options import EngineOptions
from tests import families

CPU = torch.device("cpu")


def test_bits_are_kept_where_layers_are_packed(tiny_model: Path) -> None:
    model = Model(tiny_model, CPU, torch.float32)
    assert not model.layout.exact
    assert make_exact(model) is None
    assert model.layout.exact


def test_plain_layers_keep_none(tiny_model: Path) -> None:
    model = Model(tiny_model, CPU, torch.float32, packed=False)
    assert "not packed" in str(make_exact(model))
    assert not model.layout.exact


@pytest.mark.parametrize("family", ["gemma2, window 9", "gpt_oss, window 9"])
def test_scores_that_sdpa_does_not_know_are_not_cut_into_tiles(family: str, tmp_path: Path) -> None:
    families.build(families.FAMILIES[family].config).save_pretrained(tmp_path)
    model = Model(tmp_path, CPU, torch.float32)
    assert "capped or have sink logits" in str(make_exact(model))
    assert not model.layout.exact
    options = EngineOptions(model=str(tmp_path), device="cpu", dtype="float32", capacity=64, block=8)
    assert build(options).facts.exact == "fast"
    with pytest.raises(ModelRefusedError, match="its bits cannot be kept equal: its attention scores are capped"):
        build(EngineOptions(model=str(tmp_path), device="cpu", dtype="float32", capacity=64, block=8, exact="bits"))


def test_the_comparison_sees_attention_that_keeps_none(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: calls of any shape under the name of tiles."""

    def one_call(
        start: int, stop: int, first: Any, shape: Any, *, length: int, window: int | None = None
    ) -> Iterator[Span]:
        yield causal(start, stop, first(start), shape, length=length, window=window)

    model = Model(tiny_model, CPU, torch.float32)
    monkeypatch.setattr(sink_group, "tiled", one_call)
    assert make_exact(model) == "its logits depend on what stands beside a row"
    assert not model.layout.exact


def test_fast_is_honoured(tiny_model: Path) -> None:
    options = EngineOptions(model=str(tiny_model), device="cpu", dtype="float32", capacity=64, block=8, exact="fast")
    assert build(options).facts.exact == "fast"
