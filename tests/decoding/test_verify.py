"""Verification against plain decoding: a "model" that is any function of the prefix."""

import random

from hypothesis import given
from hypothesis import strategies as st

from decoding.drafts import ROOT, Trie
from decoding.verify import verify

VOCAB = 4


def next_token(prefix: tuple[int, ...], seed: int) -> int:
    """Depends on all of the prefix, as a model's choice does."""
    return random.Random(hash((prefix, seed))).randrange(VOCAB)


def plain(seed: int, end_ids: set[int], budget: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < budget and not (tokens and tokens[-1] in end_ids):
        tokens.append(next_token(tuple(tokens), seed))
    return tokens


def path(trie: Trie, node: int) -> tuple[int, ...]:
    return () if node == ROOT else (*path(trie, trie.parents[node]), trie.tokens[node])


drafts = st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=6), max_size=8)


@given(drafts, st.integers(0, 99), st.sets(st.integers(0, VOCAB - 1), max_size=2), st.integers(1, 8))
def test_whatever_is_drafted_the_text_is_that_of_plain_decoding(
    candidates: list[list[int]], seed: int, end_ids: set[int], budget: int
) -> None:
    trie = Trie()
    for candidate in candidates:
        trie.add(candidate)

    def choose(node: int, accepted: list[int]) -> int:
        assert path(trie, node) == tuple(accepted)  # a row is asked only where its own prefix was accepted
        return next_token(path(trie, node), seed)

    got = verify(trie, choose, end_ids, budget)
    want = plain(seed, end_ids, budget)
    assert got.tokens == want[: len(got.tokens)]
    assert len(got.nodes) == len(got.tokens)
    finished = got.tokens == want
    assert finished or trie.child(got.nodes[-1], got.tokens[-1]) is None  # stops early only where the trie does


def test_an_empty_trie_is_autoregressive_decoding() -> None:
    assert verify(Trie(), lambda node, accepted: 7, (), 9) == ([7], [ROOT])


def test_a_full_match_keeps_the_bonus_token() -> None:
    trie = Trie()
    trie.add([1, 2])
    assert verify(trie, lambda node, accepted: len(accepted) + 1, (), 9).tokens == [1, 2, 3]


def test_an_end_token_inside_the_run_cuts_it() -> None:
    trie = Trie()
    trie.add([1, 2, 3])
    assert verify(trie, lambda node, accepted: len(accepted) + 1, {2}, 9).tokens == [1, 2]


def test_a_shared_prefix_is_one_row() -> None:
    trie = Trie()
    trie.add([5, 6, 7])
    trie.add([5, 6, 8])
    trie.add([5])
    assert trie.tokens[1:] == [5, 6, 7, 8]
    assert trie.parents[1:] == [0, 1, 2, 2]
