"""What a model thinks before it answers, told apart from the answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Tags:
    """What thinking is written between."""

    open: str
    close: str


KNOWN_TAGS = (Tags("<think>", "</think>"), Tags("[THINK]", "[/THINK]"))


class _State(Enum):
    BEFORE = "before"  # white space so far: thinking may begin
    THINKING = "thinking"
    BETWEEN = "between"  # white space behind it
    ANSWERING = "answering"


class Reasoning:
    """Splits a text that arrives piece by piece, however it is cut.

    White space around what was thought is no part of it, nor of the answer.
    """

    def __init__(self, tags: Tags | None, *, opened: bool = False) -> None:
        """tags: None where all is the answer. opened: the prompt ends with the first tag."""
        self._tags = tags
        self._state = _State.ANSWERING if tags is None else _State.THINKING if opened else _State.BEFORE
        self._held = ""  # not told apart yet
        self._begun = False  # whether something thought has been passed on

    @property
    def thinking(self) -> bool:
        """Whether the text has got into what is thought, and not out of it."""
        return self._state is _State.THINKING

    def push(self, text: str) -> tuple[str, str]:
        """What it adds to what is thought, and to the answer."""
        if self._state is _State.ANSWERING:
            return "", text
        self._held += text
        thought, answer = "", ""
        for part, answers in self._parts():
            if answers:
                answer += part
            else:
                thought += part
        return thought, answer

    def flush(self) -> tuple[str, str]:
        """At the end of the text: what was held."""
        held, self._held = self._held, ""
        if self._state is _State.THINKING:
            return held.rstrip() if self._begun else held.strip(), ""
        return "", "" if self._state is _State.BETWEEN else held

    def _parts(self) -> Iterator[tuple[str, bool]]:
        assert self._tags is not None
        if self._state is _State.BEFORE:
            said = self._held.lstrip()
            if said.startswith(self._tags.open):
                self._state, self._held = _State.THINKING, said[len(self._tags.open) :]
            elif not self._tags.open.startswith(said):
                self._state = _State.ANSWERING
        if self._state is _State.THINKING:
            thought, closed, behind = self._held.partition(self._tags.close)
            if closed:
                self._state, self._held = _State.BETWEEN, behind
                passed = thought.rstrip()
            else:
                passed = thought[: len(thought) - _open_end(thought, self._tags.close)].rstrip()
                self._held = thought[len(passed) :]
            passed = passed if self._begun else passed.lstrip()
            self._begun = self._begun or bool(passed)
            yield passed, False
        if self._state is _State.BETWEEN and (answer := self._held.lstrip()):
            self._state, self._held = _State.ANSWERING, answer
        if self._state is _State.ANSWERING:
            answer, self._held = self._held, ""
            yield answer, True


def _open_end(text: str, tag: str) -> int:
    """Length of the longest end of a text that a tag may begin with, but is not all of it."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
