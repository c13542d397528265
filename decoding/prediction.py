"""The text that a client expects (OpenAI's predicted outputs), as a source of drafts. No torch."""

from collections.abc import Sequence
from typing import ClassVar

from decoding.suffix import Suffixes


class Prediction(Suffixes):
    """Found again by its last tokens wherever the answer departs from it."""

    name: ClassVar[str] = "prediction"
    odds: ClassVar[Sequence[float]] = (-0.5, *([1.5, -1.0, -2.0, -2.0] * 7), *(3.0, -1.0, -1.0, -1.0))

    def __init__(self, before: Sequence[int], tokens: Sequence[int]) -> None:
        """before: the last two tokens of the prompt, so that the answer's beginning is found."""
        super().__init__([*before, *tokens])
        self.extend(len(before) + len(tokens))
