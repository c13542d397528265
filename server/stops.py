"""Stop strings in a text that arrives piece by piece."""

from collections.abc import Iterable


class StopMatcher:
    """Passes text through up to the earliest stop string in it, and holds back only what may become one.

    What is held is the longest tail that is a proper prefix of a stop string. Linear in the text, however long the
    stop strings are: each has its Knuth-Morris-Pratt automaton, whose state is the length of just that tail.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Text to pass on, and whether a stop string was completed: then nothing follows. Earliest is by its start."""
        if not self._automata:
            return piece, False
        text = self._held + piece
        starts = [start for automaton in self._automata if (start := automaton.find(piece)) is not None]
        if starts:
            return text[: len(self._held) + min(starts)], True
        split = len(text) - max(automaton.state for automaton in self._automata)
        self._held = text[split:]
        return text[:split], False

    def flush(self) -> str:
        """At the end of the text: what was held, which became no stop string."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.state = 0  # length of the longest prefix of the pattern that the text ends with
        self._fallback = [0] * len(pattern)  # the same for each prefix of the pattern, itself excluded
        for end in range(1, len(pattern)):
            state = self._fallback[end - 1]
            while state and pattern[state] != pattern[end]:
                state = self._fallback[state - 1]
            self._fallback[end] = state + (pattern[state] == pattern[end])

    def find(self, piece: str) -> int | None:
        """Where the first match that `piece` completes starts, counted from the start of `piece`: maybe before it."""
        for end, character in enumerate(piece, 1):
            while self.state and self._pattern[self.state] != character:
                self.state = self._fallback[self.state - 1]
            self.state += self._pattern[self.state] == character
            if self.state == len(self._pattern):
                return end - self.state
        return None
