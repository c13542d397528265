"""Which tokens of a row top_k, top_p and min_p keep. Nothing is sorted: it is asked for one token at a time."""

import math
import sys
from functools import cached_property

import numpy as np

from decoding.race import Scores, peaks_of, tiled
from decoding.turn import Sampling


class Filters:
    """Of one row. Tokens are ranked by score, and at ties by id: each filter keeps the first ones of that order."""

    def __init__(self, scores: Scores, sampling: Sampling) -> None:
        """scores: [vocabulary], the largest of them 0."""
        self._scores = scores
        self._top_k = sampling.top_k if 0 < sampling.top_k < scores.size else 0
        self._top_p = sampling.top_p
        self.floor = self._floor(sampling.min_p)  # no token with a lower score is kept

    def keep(self, token: int) -> bool:
        """Whether all filters keep a token that has the floor's score or more."""
        if not self._top_k and self._top_p >= 1:
            return True
        score = self._scores[token]
        above = self._most_likely > score
        ties = np.count_nonzero(self._scores[:token] == score)
        rank = np.count_nonzero(above) + ties
        if rank == 0:
            return True
        if self._top_k and rank >= self._top_k:
            return False
        if self._top_p >= 1:
            return True
        mass = self._masses[above].sum() + ties * math.exp(score)
        return bool(mass < self._top_p * self._masses.sum())  # the ranks before it do not reach top_p yet

    def before(self, token: int) -> Scores:
        """The scores of what is ranked before a token; -inf for the rest."""
        score = self._scores[token]
        scores = np.where(self._scores > score, self._scores, -np.inf)
        scores[:token][self._scores[:token] == score] = score
        return scores

    @cached_property
    def _most_likely(self) -> Scores:
        """The scores that top_k keeps, in any order."""
        if not self._top_k:
            return self._scores
        tiles = tiled(self._scores)
        if self._top_k <= len(tiles):  # they are in the tiles with the best scores
            peaks = peaks_of(tiles)
            tiles = tiles[peaks >= np.partition(peaks, -self._top_k)[-self._top_k]]
        return np.partition(tiles.reshape(-1), -self._top_k)[-self._top_k :]

    @cached_property
    def _masses(self) -> Scores:
        masses: Scores = np.exp(self._most_likely)
        return masses

    def _floor(self, min_p: float) -> float:
        floor = -sys.float_info.max
        if min_p > 0:
            floor = math.log(min_p)
        if self._top_k:
            floor = max(floor, float(self._most_likely.min()))
        if self._top_p < 1:  # the last token it keeps, and all behind it, have a mass of 1 - top_p or more
            floor = max(floor, math.log((1 - self._top_p) / self._scores.size) - 1e-6)
        return min(floor, 0.0)
