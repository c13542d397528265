"""How well a model predicts a long text under a cache policy: the loss of every token, in one stream."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cache.policy import Policy
from cache.rule import Rule
from decoding.model import Model


def losses(
    model: Model, policy: Policy, rule: Rule, ids: Sequence[int], *, first: int = 0, chunk: int = 128
) -> Iterator[list[float]]:
    """Negative log-likelihoods (nats) of ids[first + 1], ids[first + 2], … each given what the policy lets it see.

    Yields them in pieces, in order. Where a piece ends depends on the arguments alone, so a second run gives the same
    numbers. `first` > 0 leaves out the losses before it; only a policy that restarts is spared their computation, too.
    """
    cache = policy.new_cache(model.layout, rule, max_rows=chunk)
    count = len(ids) - 1  # queries
    start = first if policy.restarts else 0
    while start < count:
        stop = min(start + chunk, count)
        if policy.restarts:  # a window is right for the queries of one E
            stop = next(iter(rule.runs(start, stop))).stop
        found: list[float] = []
        while rows := min(chunk, cache.waiting(stop)):
            position = cache.length
            wanted = max(0, position + rows - max(start, first))
            logits = model.extend(cache, ids[position : position + rows], min(rows, wanted))
            found += _losses(logits, ids[position + rows - len(logits) + 1 : position + rows + 1])
        if found:
            yield found
        start = stop


def _losses(logits: Tensor, following: Sequence[int]) -> list[float]:
    """logits [rows, vocabulary] and the token that came after each row."""
    target = torch.tensor(following, dtype=torch.int64, device=logits.device)
    losses: list[float] = cross_entropy(logits.to(torch.float64), target, reduction="none").tolist()
    return losses
