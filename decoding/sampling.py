"""From the logits of one row to one token: greedy, or seeded sampling by noise that is a pure function."""

import numpy as np
from torch import Tensor

from decoding.filters import Filters
from decoding.noise import gumbel
from decoding.race import winner
from decoding.ranked import first_of_largest
from decoding.turn import Sampling

__all__ = ["choose", "gumbel"]


def choose(logits: Tensor, sampling: Sampling, position: int) -> int:
    """The token for text position `position`, from its row of logits [vocabulary].

    argmax(logits / temperature + Gumbel noise) over the tokens that the filters keep draws each of them with its
    renormalised probability. The order is the field's: temperature, top_k, top_p, min_p.
    """
    if sampling.temperature == 0:
        return int(first_of_largest(logits[None]))
    scores = logits.cpu().numpy().astype(np.float64)
    scores -= scores.max()  # the largest is 0, however small the temperature
    with np.errstate(over="ignore"):
        scores /= sampling.temperature
    filters = Filters(scores, sampling)
    running = scores
    while True:
        token = winner(running, filters.floor, sampling.seed, position)
        if filters.keep(token):
            return token
        running = filters.before(token)  # none that is ranked behind it is kept either
