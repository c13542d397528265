"""What a step's logits say, row by row, in one transfer from the device."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

_TILE = 128  # tokens whose largest logit is found first


class Ranked(NamedTuple):
    """Rows of logits, and what is known of each."""

    logits: Tensor  # [rows, vocabulary] float32 or wider, on the device
    best: list[int]  # the token with the largest logit, the first one at ties
    finite: list[bool]  # whether that is a number
    likeliest: list[list[int]]  # the tokens with the largest logits, falling; ties in any order

    def part(self, first: int, stop: int) -> "Ranked":
        """Rows first..stop-1."""
        rows = slice(first, stop)
        return Ranked(self.logits[rows], self.best[rows], self.finite[rows], self.likeliest[rows])

    def last(self, count: int) -> "Ranked":
        """The last rows."""
        return self.part(len(self.best) - count, len(self.best))


def rank(logits: Tensor, count: int) -> Ranked:
    """count: how many tokens of each row are told."""
    rows, vocab = logits.shape
    if rows == 0:
        return Ranked(logits, [], [], [])
    count = min(count, vocab)
    tiles = pad(logits, (0, -vocab % _TILE), value=-math.inf).view(rows, -1, _TILE)
    peaks = tiles.amax(-1)  # the tokens asked for are in the tiles with the highest peaks: most need not be ranked
    tops = peaks.topk(min(count, peaks.shape[1])).indices
    candidates = tiles.gather(1, tops[..., None].expand(-1, -1, _TILE)).flatten(1)
    ranks = candidates.topk(count).indices
    likeliest = (tops.gather(1, ranks // _TILE) * _TILE + ranks % _TILE).clamp(max=vocab - 1)  # where few are finite
    tile = first_of_largest(peaks)
    best = tile * _TILE + first_of_largest(tiles[torch.arange(rows, device=logits.device), tile])
    largest = logits.gather(1, best[:, None]).double()  # NaN where any is
    table = torch.cat((best[:, None].double(), largest, likeliest.double()), dim=1).tolist()
    return Ranked(
        logits,
        [int(row[0]) for row in table],
        [math.isfinite(row[1]) for row in table],
        [[int(token) for token in row[2:]] for row in table],
    )


def first_of_largest(values: Tensor) -> Tensor:
    """Index of the largest value of each row, the first one at ties: [rows, n] to [rows]."""
    if values.device.type == "cpu":
        return values.argmax(-1)  # the CPU's kernel returns the first, and NaN before all
    return _first_of_largest(values)


def _first_of_largest(values: Tensor) -> Tensor:
    """The same where argmax promises no order."""
    index = torch.arange(values.shape[-1], device=values.device)
    largest = values.amax(-1, keepdim=True)
    return torch.where((values == largest) | values.isnan(), index, values.shape[-1] - 1).amin(-1)
