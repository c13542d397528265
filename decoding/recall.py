"""Whether a session can still tell what stood in it: a choice among answers, by their likelihood."""

from collections.abc import Sequence

from cache.session_cache import SessionCache
from decoding.model import Model


def read(model: Model, cache: SessionCache, ids: Sequence[int], *, chunk: int) -> None:
    """Forwards ids into the cache, `chunk` rows a step."""
    for start in range(0, len(ids), chunk):
        model.extend(cache, ids[start : start + chunk], 1)


def most_likely(
    model: Model, cache: SessionCache, question: Sequence[int], answers: Sequence[Sequence[int]], *, chunk: int
) -> int:
    """Index of the answer that the model finds most likely behind the question; the session stays as it was.

    An answer's likelihood is that of all its tokens; it is fair among answers of one length, in tokens.
    """
    before = cache.length
    read(model, cache, question[:-1], chunk=chunk)
    asked = cache.length
    scores = []
    for answer in answers:
        tokens = [question[-1], *answer[:-1]]  # the rows whose logits choose the answer's tokens
        logits = model.extend(cache, tokens, len(tokens)).log_softmax(-1)
        scores.append(float(logits[range(len(answer)), list(answer)].sum()))
        cache.roll_back(asked)
    cache.roll_back(before)
    return max(range(len(answers)), key=scores.__getitem__)
