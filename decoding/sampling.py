"""From the logits of one row to one token: greedy, or seeded sampling by noise that is a pure function."""

import math

import torch
from torch import Tensor

from decoding.ranked import first_of_largest
from decoding.turn import Sampling

_TOP = 1000  # top-p ranks so many logits first, and all only where their mass does not reach
_GOLDEN = 0x9E3779B97F4A7C15  # the constants of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = 2**64 - 1


def choose(logits: Tensor, sampling: Sampling, position: int) -> int:
    """The token for text position `position`, from its row of logits [vocabulary].

    argmax(logits / temperature + Gumbel noise) over the tokens that the filters keep draws each of them with its
    renormalised probability. The order is the field's: temperature, top_k, top_p, min_p.
    """
    if sampling.temperature == 0:
        return int(first_of_largest(logits[None]))
    logits = logits.to(torch.float64)
    scores = (logits - logits.amax()) / sampling.temperature  # the largest is 0, however small the temperature
    kept = _kept(scores, sampling)
    tokens = torch.arange(scores.numel(), device=scores.device) if kept is None else kept.nonzero()[:, 0]
    noise = gumbel(sampling.seed, position, tokens)
    return int(tokens[first_of_largest((scores[tokens] + noise)[None])])


def gumbel(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise for tokens [n] int64 at one text position: [n] float64.

    A pure function of (seed, position, token): the same on every device and in every batch, whatever was drafted.
    """
    key = _signed(_mix(_mix(seed) ^ position))
    bits = _mix_tensor(tokens * _signed(_GOLDEN) + key)
    uniform = (_shift(bits, 11).to(torch.float64) + 0.5) * 2.0**-53  # inside (0, 1): both logarithms are finite
    return -torch.log(-torch.log(uniform))


def _kept(scores: Tensor, sampling: Sampling) -> Tensor | None:
    """Which tokens the filters keep: [vocabulary] bool, the most likely one always; None: all of them.

    scores: [vocabulary], the largest of them 0.
    """
    kept: Tensor | None = None
    if 0 < sampling.top_k < scores.numel():
        kept = _first(scores, scores.topk(sampling.top_k).values)
        scores = scores.masked_fill(~kept, -math.inf)
    if sampling.top_p < 1:
        kept = _first(scores, _nucleus(scores, sampling.top_p))
    if sampling.min_p > 0:
        likely = scores >= math.log(sampling.min_p)
        kept = likely if kept is None else kept & likely
    return kept


def _first(scores: Tensor, ranked: Tensor) -> Tensor:
    """The tokens with these largest scores [n], exactly n of them: at ties with the last one the first ids."""
    above, ties = scores > ranked[-1], scores == ranked[-1]
    return above | (ties & (ties.cumsum(0) <= ranked.numel() - above.sum()))


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Scores, falling, of the smallest set of most likely tokens whose probability reaches top_p: at least one."""
    total, inside = scores.logsumexp(0), 0
    for count in (min(_TOP, scores.numel()), scores.numel()):
        ranked = scores.topk(count).values
        mass = (ranked - total).exp()
        inside = int((mass.cumsum(0) - mass < top_p).sum())  # tokens whose higher ranks do not reach top_p yet
        if inside < count:
            break
    return ranked[: max(inside, 1)]


def _mix(value: int) -> int:
    """splitmix64's output function."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * _MIX[0]) & _MASK
    value = ((value ^ (value >> 27)) * _MIX[1]) & _MASK
    return value ^ (value >> 31)


def _mix_tensor(bits: Tensor) -> Tensor:
    """The same on int64 tensors, whose sums and products wrap as unsigned ones do."""
    bits = bits + _signed(_GOLDEN)
    bits = (bits ^ _shift(bits, 30)) * _signed(_MIX[0])
    bits = (bits ^ _shift(bits, 27)) * _signed(_MIX[1])
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, by: int) -> Tensor:
    """Logical shift to the right; a shift of int64 brings the sign along."""
    shifted: Tensor = (bits >> by) & (2 ** (64 - by) - 1)
    return shifted


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    return value - 2**64 if value >= 2**63 else value
