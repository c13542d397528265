"""Layers with a window of their own beside others: long texts in small slabs, against attention by its definition."""

import random
from functools import cache

import pytest
import torch
from torch import Tensor

from cache.attention import Scores
from cache.layout import Layer, Layout
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.slab import UndoExhaustedError
from cache.window_group import WindowGroup

HEADS, DIM, MAX_ROWS = 2, 8, 5


@cache
def row_of(token: int) -> Tensor:
    """Keys and values [2, HEADS, DIM], a function of the token."""
    return torch.randn(2, HEADS, DIM, generator=torch.Generator().manual_seed(token), dtype=torch.float64)


def seen(layer: Layer, rule: Rule, t: int) -> list[int]:
    if layer.window is None or layer.window > rule.capacity:
        return [j for j in range(t + 1) if rule.visible(t, j)]
    return list(range(max(0, t - layer.window + 1), t + 1))


@pytest.mark.parametrize("window", [1, 2, 9, 30, 31])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("exact", [False, True])
def test_any_course_of_steps_and_roll_backs_attends_to_what_it_should(window: int, seed: int, exact: bool) -> None:
    """A roll-back of C tokens or fewer always works; one that does not changes nothing."""
    rng = random.Random(seed)
    rule = Rule(4, 30, 7)
    layout = Layout((Layer(None, window), Layer(None)), HEADS, DIM, torch.float64, torch.device("cpu"), exact)
    session, refused, deepest = SessionCache(layout, rule, max_rows=MAX_ROWS), 0, 0
    text: list[int] = []
    for _ in range(500):
        if text and rng.random() < 0.06:
            back = rng.randint(1, min(len(text), rng.choice([3, 30, 80])))
            try:
                session.roll_back(len(text) - back)
            except UndoExhaustedError:
                assert deepest - (len(text) - back) > rule.capacity
                refused += 1
            else:
                del text[-back:]
            assert session.length == len(text)
        count = rng.randint(1, MAX_ROWS)
        text += [rng.randrange(1000) for _ in range(count)]
        deepest = max(deepest, len(text))
        _check_step(session, layout, rule, text, count)
    assert refused > 0 or window == 31


def test_a_roll_back_needs_all_of_the_window_and_no_more() -> None:
    layout = Layout((Layer(None, 9),), HEADS, DIM, torch.float64, torch.device("cpu"))
    group = WindowGroup(layout, 1, 9, rows=40, undo=10)
    for t in range(60):
        group.begin(t, t + 1, 1, None)
        group.attend(0, row_of(t)[:1], row_of(t)[None], Scores(1.0))
        group.commit(range(1))
    oldest = 40 - 9 + 1 - 10  # the rows moved to the front before the 41st was written
    group.check_roll_back(oldest + 8)
    with pytest.raises(UndoExhaustedError, match=f"from {oldest - 1} on are needed, those from {oldest} on are kept"):
        group.check_roll_back(oldest + 7)


def _check_step(session: SessionCache, layout: Layout, rule: Rule, text: list[int], count: int) -> None:
    query = torch.stack([row_of(token + 1)[0] for token in text[-count:]])
    kv = torch.stack([row_of(token) for token in text[-count:]])
    session.begin(count, 1)
    for index, layer in enumerate(layout.layers):
        got = session.attend(index, query, kv, Scores(1.0))
        for row, t in enumerate(range(len(text) - count, len(text))):
            visible = torch.stack([row_of(text[j]) for j in seen(layer, rule, t)])
            weights = torch.einsum("hd,jhd->hj", query[row], visible[:, 0]).softmax(-1)
            want = torch.einsum("hj,jhd->hd", weights, visible[:, 1])
            torch.testing.assert_close(got[row], want, rtol=0, atol=1e-12)
    session.commit(range(count))
