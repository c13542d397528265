"""Sampled texts follow the model's law whatever is drafted: three tokens drawn from a table of logits by prefix."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist

import torch

from decoding.drafts import ROOT, Trie
from decoding.sampling import choose
from decoding.turn import Sampling
from decoding.verify import Verified, verify

VOCAB = 4
LOGITS = {
    prefix: torch.tensor([random.Random(repr(prefix)).gauss(0, 1.2) for _ in range(VOCAB)], dtype=torch.float64)
    for depth in range(3)
    for prefix in itertools.product(range(VOCAB), repeat=depth)
}
CANDIDATES = [[0, 1, 2], [0, 1, 3], [0, 2, 2], [3, 3, 3], [1, 0]]  # they share and part at each depth


def p_value(sample: Callable[[int, Trie], list[int]]) -> float:
    """Of the counts of whole texts, against the product of their exact probabilities."""
    counts: Counter[tuple[int, ...]] = Counter()
    total = 6000
    for seed in range(total):
        trie = Trie()
        for candidate in CANDIDATES:
            trie.add(candidate)
        counts[tuple(sample(seed, trie))] += 1
    statistic = 0.0
    texts = list(itertools.product(range(VOCAB), repeat=3))
    for text in texts:
        probability = 1.0
        for depth in range(3):
            probability *= float(LOGITS[text[:depth]].softmax(0)[text[depth]])
        statistic += (counts[text] - probability * total) ** 2 / (probability * total)
    freedom = len(texts) - 1
    spread = 2 / (9 * freedom)  # Wilson and Hilferty's normal approximation of chi-square
    return 1 - NormalDist().cdf(((statistic / freedom) ** (1 / 3) - 1 + spread) / spread**0.5)


def sample_in_steps(verifier: Callable[[Trie, int, list[int]], Verified], seed: int, trie: Trie) -> list[int]:
    """The first step drafts; what it leaves to be chosen is chosen one by one."""
    text = verifier(trie, seed, []).tokens[:3]
    while len(text) < 3:
        text += verifier(Trie(), seed, text).tokens
    return text


def honest(trie: Trie, seed: int, before: list[int]) -> Verified:
    def pick(node: int, accepted: list[int]) -> int:
        prefix = (*before, *accepted)
        return choose(LOGITS[prefix], Sampling(seed=seed), len(prefix))

    return verify(trie, pick, (), 3 - len(before))


def biased(trie: Trie, seed: int, before: list[int]) -> Verified:
    """Accepts a draft that is likely enough, whatever was drawn."""

    def pick(node: int, accepted: list[int]) -> int:
        prefix = (*before, *accepted)
        probabilities = LOGITS[prefix].softmax(0)
        for token in range(VOCAB):
            if trie.child(node, token) is not None and probabilities[token] > 0.1:
                return token
        return choose(LOGITS[prefix], Sampling(seed=seed), len(prefix))

    return verify(trie, pick, (), 3 - len(before))


def test_sampled_texts_follow_the_law_whatever_is_drafted() -> None:
    assert p_value(lambda seed, trie: sample_in_steps(honest, seed, trie)) > 0.01


def test_a_biased_verifier_is_found_out() -> None:
    """Control: the test above sees it."""
    assert p_value(lambda seed, trie: sample_in_steps(biased, seed, trie)) < 1e-6


def test_a_chain_alone_is_trusted_where_bits_are_kept() -> None:
    trie = Trie()
    trie.add([1, 2])
    trie.add([3, 4])
    for first, nodes in ((1, [ROOT, 1, 2]), (3, [ROOT])):
        path = {1: [1, 2, 9], 3: [3, 4, 9]}[first]
        assert verify(trie, lambda node, accepted, path=path: path[len(accepted)], (), 9, chain=True).nodes == nodes  # type: ignore[misc]
        assert len(verify(trie, lambda node, accepted, path=path: path[len(accepted)], (), 9).nodes) == 3  # type: ignore[misc]
