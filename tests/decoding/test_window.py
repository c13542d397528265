"""The lookahead window against its definition, written out again column by column; and Jacobi decoding."""

import random
from collections.abc import Sequence

import pytest

from decoding.acceptance import Acceptance
from decoding.drafting import num_rows
from decoding.drafts import ROOT
from decoding.guesses import Guesses
from decoding.pool import Pool
from decoding.strategy import Draft, Limits
from decoding.tally import Tally, credit
from decoding.turn import Credit, Drafting
from decoding.verify import Verified, verify
from decoding.window import Jacobi, Lookahead, Window

VOCAB = 50


def model(path: Sequence[int]) -> int:
    """The greedy choice behind a path: any function of all of it."""
    return random.Random(repr(list(path))).randrange(VOCAB)


def path_to(draft: Draft, node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(draft.tokens[node])
        node = draft.parents[node]
    return path[::-1]


def walk(draft: Draft, path: Sequence[int]) -> int:
    node: int | None = ROOT
    for token in path:
        assert node is not None
        node = draft.child(node, token)
    assert node is not None
    return node


def best_of(draft: Draft, pending: int) -> list[int]:
    return [model([pending, *path_to(draft, node)]) for node in range(len(draft))]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ngram", [2, 3, 4, 6])
def test_follows_the_definition_from_warm_up_on(width: int, ngram: int) -> None:
    """Who sees whom, one token at each position; what is harvested; how it shifts. (0, 0) is the pending token."""
    text = random.Random(width * 10 + ngram)
    window = Window(width, ngram, [7, 8, 9])
    filled, columns = 1, width + ngram - 2
    grid = {(0, c): token for c, token in enumerate(window._rows[0], 1)}
    assert len(grid) == width + ngram - 3
    for _ in range(3 * ngram):
        pending = text.randrange(VOCAB)
        grid[0, 0] = pending
        draft = Draft()
        assert window.columns == columns
        assert (
            window.size
            == columns * filled
            <= num_rows(Drafting(strategy="lookahead", window=width, ngram=ngram, guesses=0))
        )
        window.place(draft)
        nodes = {ROOT}
        new = []
        for level in range(filled):
            for c in range(columns):
                seen = [(0, j) for j in range(c + 1)] + [(i, c) for i in range(1, level + 1)]
                path = [grid[place] for place in seen]
                node = walk(draft, path[1:])
                assert draft.depth(node) == level + c  # its text position, behind the pending token's
                nodes.add(node)
                if level == filled - 1:
                    new.append(model(path))
        assert nodes == set(range(len(draft)))
        harvest = list(window.shift(pending, best_of(draft, pending)))
        if filled == ngram - 1:
            assert harvest == [[*(grid[level, c] for level in range(filled)), new[c]] for c in range(columns)]
            grid = {(level - 1, c): token for (level, c), token in grid.items() if level}
            grid |= {(filled - 1, c): token for c, token in enumerate(new)}
            grid.pop((0, 0), None)
        else:
            assert harvest == []
            grid = {(level, c - 1): token for (level, c), token in grid.items() if c}
            grid |= {(filled, c - 1): token for c, token in enumerate(new) if c}
            filled, columns = filled + 1, columns - 1


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize(("width", "ngram", "most"), [(5, 4, 3), (1, 2, 1), (3, 3, 0), (1, 5, 4), (6, 2, 2)])
def test_lookahead_drafts_a_window_and_at_most_so_many_guesses(width: int, ngram: int, most: int, chain: bool) -> None:
    pool, tally = Pool(), Tally()
    guesses = Guesses([pool], Acceptance([Pool]), ())
    strategy = Lookahead(Window(width, ngram, [1, 2, 3]), pool, guesses, ngram, most)
    sizes = Drafting(strategy="lookahead", window=width, ngram=ngram, guesses=most)
    text = [1, 2]
    for _ in range(200):
        draft = strategy.draft(text[-16:], Limits(128, 100, 0.02, chain))
        assert len(draft) <= num_rows(sizes)
        sourced = [node for node in range(1, len(draft)) if draft.evidence[node]]
        tips = [node for node in sourced if all(draft.parents[other] != node for other in sourced)]
        assert len(tips) <= (min(most, 1) if chain else most)
        assert all(draft.depth(node) < ngram for node in sourced)
        if chain:
            assert sourced == list(range(1, len(sourced) + 1))
        best = [model([*text, *path_to(draft, node)][-3:]) for node in range(len(draft))]  # three tokens decide
        verified = verify(draft, lambda node, _, best=best: best[node], (), 100, chain=chain)  # type: ignore[misc]
        strategy.learn(draft, verified, best)
        if came := credit(draft, verified, ["pool"]):
            tally.add(came)
        text += verified.tokens
    if most and ngram > 2:  # a text of three tokens' memory repeats itself, and the pool knows it
        assert tally.accepted["pool"] > (20 if width > 1 else 0)


def test_without_room_the_window_waits() -> None:
    pool = Pool()
    guesses = Guesses([pool], Acceptance([Pool]), ())
    strategy = Lookahead(Window(5, 3, [1, 2, 3]), pool, guesses, 3, 2)
    assert len(strategy.draft([1, 2], Limits(3, 9, 0.0))) == 1
    strategy.learn(Draft(), Verified([5], [ROOT]), [5])
    assert len(strategy.draft([2, 5], Limits(6, 9, 0.0))) == 6  # the window alone, just fitting


def test_jacobi_iterates_its_chain() -> None:
    """After k accepted tokens the chain is what the model made of it behind them; the prompt fills it up."""
    jacobi = Jacobi(5, [1, 2, 3])
    draft = jacobi.draft([9], Limits(99, 99, 0.0))
    assert draft.parents[1:] == [0, 1, 2, 3]
    best = [draft.tokens[1], 20, 21, 22, 23]  # the first guess is right, the next is not
    verified = verify(draft, lambda node, _: best[node], (), 9)
    assert verified.tokens == [draft.tokens[1], 20]
    jacobi.learn(draft, verified, best)
    again = jacobi.draft([20], Limits(99, 99, 0.0))
    assert again.tokens[1:4] == [21, 22, 23]
    assert again.tokens[4] in (1, 2, 3)
    assert credit(draft, verified, []) == Credit(
        rows=4, drafted={"window": 4}, accepted={"window": 1}, sources=["window", ""]
    )
