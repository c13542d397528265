"""The text that a client expects (OpenAI's predicted outputs), as a source of drafts. No torch."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from decoding.drafts import Source
from decoding.suffix import Suffixes


class Prediction(Source):
    """Found again by its last tokens wherever the answer departs from it."""

    name: ClassVar[str] = "prediction"
    odds: ClassVar[Sequence[float]] = (  # by evidence as of suffixes; a guess
        -0.5,
        *([1.5, -1.0, -2.0, -2.0] * 7),
        *(3.0, -1.0, -1.0, -1.0),
    )

    def __init__(self, before: Sequence[int], tokens: Sequence[int]) -> None:
        """before: the last two tokens of the prompt, so that the answer's beginning is found."""
        text = [*before, *tokens]
        self._suffixes = Suffixes(text)
        self._suffixes.extend(len(text))

    def propose(self, context: Sequence[int]) -> Iterable[tuple[int, int]]:
        """What follows the longest match in the prediction."""
        return self._suffixes.propose(context)
