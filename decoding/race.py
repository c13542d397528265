"""The token whose score and noise are the largest in sum, found without computing the noise of most tokens.

A token of a tile whose best score is p can win only if its noise is r - p or more, where r is a sum that some token
reaches. Noise rises with the bits that it is made of, so that one comparison of bits, before any logarithm, leaves a
few tokens of a vocabulary.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.noise import CERTAIN, Bits, finished, gumbel, key, mixed, products

Scores = NDArray[np.float64]

TILE = 128  # tokens whose best score is found first
_LEADERS = 8  # tiles with the best scores: one of their tokens likely wins
_SLACK = 1e-9  # far more than rounding can add to a sum
_ALMOST_ALL = 2.0**64 - 2**11  # the largest float64 below 2**64


def winner(scores: Scores, floor: float, seed: int, position: int) -> int:
    """argmax(scores + noise) over the tokens that have `floor` or more, as the largest score does; the first at ties.

    scores: [vocabulary], -inf for a token that may not come. floor: finite.
    """
    tiles = tiled(scores)
    peaks = peaks_of(tiles)
    likely = np.flatnonzero(peaks >= floor)
    peaks = peaks[likely]
    every = _products(scores.size)
    bits = mixed(every if likely.size == len(every) else every[likely], key(seed, position))
    leaders = np.argpartition(peaks, -min(_LEADERS, peaks.size))[-_LEADERS:]
    leading = tiles[likely[leaders]]
    reached = np.where(leading >= floor, leading + finished(bits[leaders]), -np.inf).max() - _SLACK
    chances = -np.expm1(-np.exp(peaks - reached)) + 2.0**-52  # that noise takes a peak as far
    least = ~np.minimum(chances * 2.0**64, _ALMOST_ALL).astype(np.uint64) & CERTAIN
    hits = np.flatnonzero(bits >= least[:, None])
    tokens = likely[hits // TILE] * TILE + hits % TILE
    values = tiles.reshape(-1)[tokens]
    tokens, values = tokens[values >= floor], values[values >= floor]
    sums = values + gumbel(seed, position, torch.from_numpy(tokens)).numpy()
    return int(tokens[sums.argmax()])


def tiled(scores: Scores) -> Scores:
    """[vocabulary] to [tiles, tokens], the last one filled up with -inf."""
    if beyond := -scores.size % TILE:
        scores = np.concatenate((scores, np.full(beyond, -np.inf)))
    return scores.reshape(-1, TILE)


def peaks_of(tiles: Scores) -> Scores:
    """The best score of each tile; torch takes half of numpy's time."""
    peaks: Scores = torch.from_numpy(tiles).amax(1).numpy()
    return peaks


@lru_cache(maxsize=4)
def _products(vocab: int) -> Bits:
    """Of all tokens, in tiles."""
    return products(np.arange(-(-vocab // TILE) * TILE, dtype=np.uint64)).reshape(-1, TILE)
