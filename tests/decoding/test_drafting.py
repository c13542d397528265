"""Sizes of the strategies: what may be asked, and what is taken where nothing is."""

from pathlib import Path

import pytest
from msgspec import structs

from decoding.build import build
from decoding.drafting import DraftingError, num_rows, resolve
from decoding.errors import ModelRefusedError
from decoding.options import EngineOptions
from decoding.turn import Drafting


def lookahead(window: int, ngram: int, guesses: int) -> Drafting:
    return Drafting(strategy="lookahead", window=window, ngram=ngram, guesses=guesses)


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [
        (Drafting(window=3), "window"),
        (Drafting(strategy="autoregressive", guesses=1), "guesses"),
        (Drafting(strategy="jacobi", ngram=3), "ngram"),
        (Drafting(strategy="jacobi", window=0), "window"),
        (lookahead(0, 3, 1), "window"),
        (lookahead(1, 1, 1), "ngram"),
        (lookahead(1, 2, -1), "guesses"),
        (lookahead(15, 5, 18), "window"),
        (Drafting(strategy="jacobi", window=129), "window"),
    ],
)
def test_sizes_that_cannot_be_name_the_parameter(asked: Drafting, parameter: str) -> None:
    with pytest.raises(DraftingError) as error:
        resolve(asked, 128)
    assert error.value.parameter == parameter


def test_sizes_that_are_not_given_are_the_strategys_own(tiny_model: Path) -> None:
    assert num_rows(resolve(lookahead(15, 5, 15), 128)) == 120
    assert resolve(Drafting(strategy="lookahead", window=3), 128) == lookahead(3, 4, 5)
    options = EngineOptions(
        model=str(tiny_model), device="cpu", capacity=48, block=8, drafting=Drafting(strategy="jacobi")
    )
    assert build(options).facts.drafting == Drafting(strategy="jacobi", window=8)
    with pytest.raises(ModelRefusedError, match="take 30 rows of a step, and there are 16"):
        build(structs.replace(options, drafting=Drafting(strategy="lookahead"), max_rows=16))
