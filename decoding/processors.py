"""What changes a row's logits before a token is chosen: penalties, biases, a grammar, end tokens that are too early."""

import math
from array import array

import numpy as np
import torch
from torch import Tensor

from cache.rule import Rule
from decoding.constraint import Constraint
from decoding.turn import Sampling, Turn


class Processor:
    """Processes the rows of one turn, each at its own prefix: the session's tokens and those accepted in this step.

    The order: repetition_penalty, frequency_penalty and presence_penalty, logit_bias, min_tokens and the grammar.
    """

    def __init__(self, turn: Turn, rule: Rule, ids: "array[int]", constraint: Constraint | None = None) -> None:
        """ids: all tokens of the session, the turn's prompt at their end; others append what the turn generates.
        constraint: of the turn's grammar.
        """
        self._sampling = turn.sampling
        self._min_tokens, self._end_ids = turn.min_tokens, turn.end_ids
        self._rule, self._constraint = rule, constraint
        self._ids, self._first = ids, len(ids)
        self._counted = 0  # generated tokens that are in the counts
        self._counts: Tensor | None = None  # [vocabulary] float64: how often each was generated, accepted ones excluded

    def process(self, logits: Tensor, accepted: list[int]) -> Tensor:
        """A new row [vocabulary] float64 from one row of logits [vocabulary], at the prefix that `accepted` ends.

        A token that may not come has -inf.
        """
        row = logits.to(torch.float64, copy=True)
        asked = self._sampling
        if asked.repetition_penalty != 1:
            seen = self._visible(accepted).to(row.device)  # some of them twice, and written twice with the same value
            values = row[seen]
            row[seen] = torch.where(values > 0, values / asked.repetition_penalty, values * asked.repetition_penalty)
        if asked.frequency_penalty or asked.presence_penalty:
            counts = self._count(accepted, row)
            row -= asked.frequency_penalty * counts + asked.presence_penalty * (counts > 0)
        if asked.logit_bias:
            biased = torch.tensor(list(asked.logit_bias), device=row.device)
            row[biased] += torch.tensor(list(asked.logit_bias.values()), dtype=row.dtype, device=row.device)
        too_early = len(self._ids) - self._first + len(accepted) < self._min_tokens
        if self._constraint is not None:
            row.masked_fill_(self._forbidden(self._constraint, accepted, row, too_early=too_early), -math.inf)
        elif too_early:
            row[self._end_ids] = -math.inf
        return row

    def _forbidden(self, constraint: Constraint, accepted: list[int], row: Tensor, *, too_early: bool) -> Tensor:
        """Tokens that may not come: [vocabulary] bool. A text that can only end ends, however early."""
        constraint.seek(accepted)
        bits = np.unpackbits(np.frombuffer(constraint.allowed(), dtype=np.uint8), count=len(row), bitorder="little")
        if too_early:
            longer = bits.copy()
            longer[self._end_ids] = 0
            bits = longer if longer.any() else bits
        return torch.from_numpy(bits == 0).to(row.device)

    def _visible(self, accepted: list[int]) -> Tensor:
        """The tokens that the row's query sees, itself included: [n] int64, in text order."""
        evicted = self._rule.evicted(len(self._ids) + len(accepted) - 1)
        kept = self._ids[: self._rule.sinks] + self._ids[self._rule.sinks + evicted :] if evicted else self._ids[:]
        return torch.frombuffer(
            kept + array("i", accepted), dtype=torch.int32
        ).long()  # a copy: ids must be able to grow

    def _count(self, accepted: list[int], row: Tensor) -> Tensor:
        """How often this turn has generated each token: [vocabulary]."""
        if self._counts is None:
            self._counts = torch.zeros_like(row)
        new = self._ids[self._first + self._counted :].tolist()
        self._counted += len(new)
        _add(self._counts, new)
        if not accepted:
            return self._counts
        counts = self._counts.clone()
        _add(counts, accepted)
        return counts


def processor_for(turn: Turn, rule: Rule, ids: "array[int]", constraint: Constraint | None = None) -> Processor | None:
    """None where the turn asks for nothing that changes logits. Arguments as `Processor` takes them."""
    asked = turn.sampling
    changes = asked.repetition_penalty != 1 or asked.frequency_penalty or asked.presence_penalty or asked.logit_bias
    return Processor(turn, rule, ids, constraint) if changes or turn.min_tokens or constraint else None


def check(sampling: Sampling, vocab_size: int) -> None:
    """Raises ValueError for what no row can be processed by."""
    if not all(0 <= token < vocab_size for token in sampling.logit_bias):
        raise ValueError(f"token ids of logit_bias are between 0 and {vocab_size - 1}")
    if not all(map(math.isfinite, sampling.logit_bias.values())):
        raise ValueError("logit_bias must be finite")
    if not sampling.repetition_penalty > 0:
        raise ValueError(f"repetition_penalty must be above 0, not {sampling.repetition_penalty}")


def _add(counts: Tensor, tokens: list[int]) -> None:
    """Counts tokens, in place."""
    if tokens:
        index = torch.tensor(tokens, dtype=torch.int64, device=counts.device)
        counts.index_put_((index,), torch.ones_like(index, dtype=counts.dtype), accumulate=True)
