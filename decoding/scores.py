"""What the model thought of tokens: log-softmax of the raw logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.turn import FLOOR, Scored


def score(logits: Tensor, tokens: Sequence[int], top: int) -> list[Scored]:
    """The token that follows each row of logits [rows, vocabulary], and each row's `top` likeliest ones."""
    if not tokens:
        return []
    wide = logits.double()
    logprobs = (wide - wide.logsumexp(-1, keepdim=True)).nan_to_num(FLOOR).clamp(min=FLOOR)
    told = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    likeliest = [_likeliest(row, min(top, row.numel())) for row in logprobs] if top else [[]] * len(tokens)
    return [Scored(*pair) for pair in zip(told, likeliest, strict=True)]


def _likeliest(logprobs: Tensor, count: int) -> list[tuple[int, float]]:
    """Of one row [vocabulary]. topk promises no order at ties, nor which of them it takes."""
    least = logprobs.topk(count).values[-1]
    tokens = (logprobs >= least).nonzero()[:, 0]
    pairs = zip(tokens.tolist(), logprobs[tokens].tolist(), strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count]
