import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from decoding.ranked import _first_of_largest, first_of_largest
from decoding.sampling import choose, gumbel
from decoding.turn import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -30.0])


def splitmix64(state: int) -> int:
    """The published generator's next output for a state, with Python's own integers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_the_noise_is_the_published_generator() -> None:
    assert splitmix64(1234567) == 6457827717110365317  # the reference implementation's first output for this seed
    for seed in (0, 1, 2**63, 2**64 - 1):
        for position in (0, 5, 2**31 + 7):
            key = splitmix64(splitmix64(seed) ^ position)
            bits = [splitmix64((token * 0x9E3779B97F4A7C15 + key) % 2**64) for token in (0, 3, 49151)]
            want = [-math.log(-math.log(((b >> 11) + 0.5) / 2**53)) for b in bits]
            got = gumbel(seed, position, torch.tensor([0, 3, 49151]))
            assert got.tolist() == pytest.approx(want, rel=1e-12)


def test_the_noise_of_a_token_does_not_depend_on_which_others_are_asked() -> None:
    every = gumbel(7, 11, torch.arange(1000))
    assert torch.equal(gumbel(7, 11, torch.tensor([3, 500, 999])), every[[3, 500, 999]])


def test_the_noise_has_the_gumbel_law() -> None:
    noise = torch.stack([gumbel(3, position, torch.arange(2000)) for position in range(100)])
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    pairs = noise[:, ::2].flatten(), noise[:, 1::2].flatten()
    assert abs(np.corrcoef(pairs[0].numpy(), pairs[1].numpy())[0, 1]) < 0.01
    pairs = noise[::2].flatten(), noise[1::2].flatten()
    assert abs(np.corrcoef(pairs[0].numpy(), pairs[1].numpy())[0, 1]) < 0.01


def reference(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities by the definitions, token by token."""
    p = torch.softmax(logits.double() / sampling.temperature, 0)
    order = p.argsort(descending=True).tolist()
    kept = order[: sampling.top_k] if sampling.top_k else order
    if sampling.top_p < 1:
        mass, nucleus, total = 0.0, [], sum(p[i].item() for i in kept)
        for token in kept:
            if mass >= sampling.top_p:
                break
            nucleus.append(token)
            mass += p[token].item() / total
        kept = nucleus
    kept = [token for token in kept if p[token] >= sampling.min_p * p[order[0]]]
    out = torch.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=1),
        Sampling(seed=2, temperature=0.5),
        Sampling(seed=3, temperature=1.7, top_k=3),
        Sampling(seed=4, top_p=0.8),
        Sampling(seed=5, top_p=0.01),
        Sampling(seed=6, min_p=0.3),
        Sampling(seed=7, temperature=2, top_k=4, top_p=0.9, min_p=0.2),
    ],
    ids=str,
)
def test_choices_follow_the_law(sampling: Sampling) -> None:
    """Chi-square of 4,000 positions against the exact probabilities."""
    want = reference(LOGITS, sampling)
    draws = 4000
    counts = torch.bincount(torch.tensor([choose(LOGITS, sampling, t) for t in range(draws)]), minlength=6).double()
    assert counts[want == 0].sum() == 0
    expected = want[want > 1e-4] * draws
    chi_square = ((counts[want > 1e-4] - expected) ** 2 / expected).sum().item()
    assert chi_square < 3 * len(expected) + 15  # beyond the 0.9999 quantile of 1 to 5 degrees of freedom


def test_a_biased_choice_fails_the_law() -> None:
    """Control: the bound above is one that a wrong sampler exceeds."""
    want = reference(LOGITS, Sampling(seed=1)) * 4000
    counts = torch.bincount(
        torch.tensor([choose(LOGITS * 1.15, Sampling(seed=1), t) for t in range(4000)]), minlength=6
    )
    likely = want > 0.4
    assert ((counts - want) ** 2 / want)[likely].sum() > 3 * int(likely.sum()) + 15


def test_temperature_zero_is_the_first_of_the_largest() -> None:
    ties = torch.tensor([0.0, 3.0, 1.0, 3.0, 3.0])
    assert choose(ties, Sampling(seed=9, temperature=0), 0) == 1


def by_definition(logits: Tensor, sampling: Sampling, position: int) -> int:
    """All tokens are ranked, and all that are kept have noise."""
    scores = (logits.double() - logits.max()) / sampling.temperature
    kept = scores.argsort(descending=True, stable=True)  # at ties the first ids come first
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    if sampling.top_p < 1:
        mass = scores[kept].softmax(0)
        kept = kept[: max(1, int((mass.cumsum(0) - mass < sampling.top_p).sum()))]
    if sampling.min_p > 0:
        kept = kept[scores[kept] >= math.log(sampling.min_p)]
    kept = kept.sort().values
    return int(kept[(scores[kept] + gumbel(sampling.seed, position, kept)).argmax()])


@pytest.mark.parametrize("width", [1, 2, 7, 128, 129, 259, 5000, 49152])
def test_no_choice_differs_from_the_definitions(width: int) -> None:
    """Peaked and flat rows, rows of few values and so of many ties, forbidden tokens; filters alone and together."""
    numbers = random.Random(width)
    generator = torch.Generator().manual_seed(width)
    for number in range(200 if width > 5000 else 800):
        row = torch.randn(width, generator=generator) * numbers.choice([0.0, 0.1, 1.0, 3.0, 10.0])
        match numbers.randrange(4):
            case 0:
                row = row.bfloat16().float()
            case 1:
                row = row.round()
            case 2:
                row[1:][torch.rand(width - 1, generator=generator) < 0.5] = -math.inf
        sampling = Sampling(
            seed=number,
            temperature=numbers.choice([1e-300, 0.1, 0.8, 1.0, 2.0]),
            top_k=numbers.choice([0, 0, 1, 5, 50, 500, 10**6]),
            top_p=numbers.choice([1.0, 1.0, 0.0, 1e-9, numbers.random(), 1 - numbers.random() / 20, 1 - 1e-16]),
            min_p=numbers.choice([0.0, 0.0, 0.0, numbers.random(), 1e-9, 1.0]),
        )
        assert choose(row, sampling, number) == by_definition(row, sampling, number), sampling


def test_the_largest_noise_is_finite() -> None:
    """Its uniform is the one float64 that rounds to 1. The token is found by running the generator backwards."""
    key = splitmix64(splitmix64(5) ^ 9)
    z = 2**64 - 1
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        unshifted = z
        for _ in range(3):
            unshifted = z ^ unshifted >> shift
        z = unshifted * pow(factor, -1, 2**64) % 2**64
    token = (z - 0x9E3779B97F4A7C15 - key) * pow(0x9E3779B97F4A7C15, -1, 2**64) % 2**64
    assert splitmix64((token * 0x9E3779B97F4A7C15 + key) % 2**64) == 2**64 - 1
    signed = token - 2**64 if token >= 2**63 else token
    assert gumbel(5, 9, torch.tensor([signed])).item() == pytest.approx(53 * math.log(2), rel=1e-9)


@pytest.mark.parametrize("function", [first_of_largest, _first_of_largest])
def test_ties_give_the_first_whatever_the_width(function: Callable[[Tensor], Tensor]) -> None:
    for width in (5, 64, 1000, 49152):
        rows = torch.zeros(9, width)
        for row in range(9):
            rows[row, [width // 2, width - 1, row % width]] = 1.0
        assert function(rows).tolist() == [min(row % width, width // 2) for row in range(9)]


def test_the_nucleus_is_right_when_it_is_larger_than_the_first_ranking() -> None:
    flat = torch.zeros(5000)  # each 1/5000: a nucleus of 0.9 takes all of the ties
    seen = {choose(flat, Sampling(seed=1, top_p=0.9), t) for t in range(500)}
    assert max(seen) > 1000
    slope = -torch.arange(5000) * 1e-3
    want = reference(slope, Sampling(seed=1, top_p=0.95)) > 0
    for position in range(300):
        assert want[choose(slope, Sampling(seed=1, top_p=0.95), position)]


def test_filters_keep_the_first_ids_at_ties() -> None:
    """So top_k = 1 and top_p = 0 are greedy, which bfloat16 logits, full of ties, would show."""
    ties = torch.tensor([3.0, 1.0, 3.0, 3.0])
    for sampling in (Sampling(seed=1, top_k=1), Sampling(seed=1, top_p=0.0), Sampling(seed=1, top_p=0.2)):
        assert {choose(ties, sampling, t) for t in range(200)} == {0}
    assert {choose(ties, Sampling(seed=1, top_k=2), t) for t in range(200)} == {0, 2}
    assert {choose(ties, Sampling(seed=1, top_k=3, top_p=0.5), t) for t in range(200)} == {0, 2}


def test_the_smallest_temperature_is_as_good_as_greedy() -> None:
    for sampling in (Sampling(seed=1, temperature=5e-324), Sampling(seed=1, temperature=1e-300, top_p=0.5, min_p=0.1)):
        assert {choose(LOGITS * 30, sampling, t) for t in range(50)} == {0}


def test_logits_with_forbidden_tokens_never_give_them() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 1.0])
    for sampling in (Sampling(seed=1, temperature=2), Sampling(seed=1, top_p=0.99), Sampling(seed=1, top_k=3)):
        assert {choose(logits, sampling, t) for t in range(200)} == {1, 3}
