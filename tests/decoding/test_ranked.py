"""What is told of a row of logits."""

import math

import pytest
import torch

from decoding.ranked import rank


@pytest.mark.parametrize("vocab", [1, 3, 7, 8, 127, 128, 129, 259, 1000, 49152])
def test_tells_the_best_and_the_likeliest(vocab: int) -> None:
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab))
    ranked = rank(logits, 8)
    assert ranked.best == logits.argmax(-1).tolist()
    assert ranked.finite == [True] * 5
    assert ranked.likeliest == logits.topk(min(8, vocab)).indices.tolist()


@pytest.mark.parametrize("vocab", [5, 259, 1024])
def test_ties_give_the_first(vocab: int) -> None:
    logits = torch.zeros(4, vocab)
    for row, place in enumerate((0, 1, vocab // 2, vocab - 1)):
        logits[row, place:] = 1.0
    assert rank(logits, 8).best == [0, 1, vocab // 2, vocab - 1]


def test_rows_that_are_no_numbers_are_told_and_name_tokens_all_the_same() -> None:
    """A token past the vocabulary would be drafted, and has no embedding."""
    logits = torch.randn(4, 259)
    logits[1, 200] = math.nan
    logits[2] = -math.inf
    logits[3, 5:] = -math.inf
    ranked = rank(logits, 8)
    assert ranked.finite == [True, False, False, True]
    assert all(0 <= token < 259 for row in ranked.likeliest for token in row)
    assert set(range(5)) <= set(ranked.likeliest[3])
    part = ranked.part(1, 3)
    assert part.finite == [False, False]
    assert part.logits.shape == (2, 259)


def test_no_rows() -> None:
    assert rank(torch.empty(0, 259), 8).best == []
