"""A conversation as clients without memory have it: all that was said is sent again at every turn."""

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.chats import chat
from benchmarks.http_client import Target

_COMMON = """
time people way water day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
"""
# One token each, with the space before it, in nearly any tokenizer: so messages of as many words have the same size.
WORDS = _COMMON.split()


@dataclass(frozen=True)
class Turn:
    """What one turn cost."""

    number: int  # from 1
    seconds: float  # from the first byte sent to the first text
    read: int  # tokens of the prompt that were not cached; all of it where the server does not say
    length: int  # tokens of the conversation
    bytes: int  # of the body


def text(numbers: random.Random, words: int, pad: int = 0) -> str:
    """pad: characters behind the words, which make the body long and few tokens."""
    said = " ".join(numbers.choice(WORDS) for _ in range(words))
    return f"{said} {'=' * pad}" if pad else said


@dataclass
class Conversation:
    """One that grows. It ends with the first failure."""

    target: Target
    fixed: dict[str, Any]  # of each body
    words: int  # of a new message
    numbers: random.Random
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    failure: str | None = None

    def make_up(self, count: int, pad: int) -> None:
        """A history that was never had: so many messages, by turns of the user and of the assistant."""
        for _ in range(count // 2):
            for role in ("user", "assistant"):
                self.messages.append({"role": role, "content": text(self.numbers, self.words, pad)})

    async def go_on(self, until: Callable[[Turn], bool]) -> None:
        """One turn after the other, to the first that this is true of."""
        while self.failure is None:
            await self._take_turn()
            if self.failure is None and until(self.turns[-1]):
                return

    async def _take_turn(self) -> None:
        self.messages.append({"role": "user", "content": text(self.numbers, self.words)})
        found = await chat(self.target, self.fixed | {"messages": self.messages})
        if found.failure or found.usage is None:
            self.failure = found.failure or "the server gives no usage"
            return
        first = found.times[0] if found.times else found.ended
        number = len(self.messages) // 2 + 1
        usage = found.usage
        read = usage.prompt_tokens - usage.cached_tokens
        length = found.session.tokens if found.session else usage.prompt_tokens + usage.completion_tokens
        self.turns.append(Turn(number, first - found.began, read, length, found.bytes))
        self.messages.append({"role": "assistant", "content": found.text})
        if number % 50 == 0:
            print(f"turn {number}, {time.strftime('%X')}", file=sys.stderr, flush=True)


def window(turns: Sequence[Turn], number: int, width: int) -> list[Turn]:
    """Of one conversation so many turns from this one on, or the last ones where fewer follow; [] where it has it not.

    The first turn of all stands alone: nothing is cached yet.
    """
    numbers = [turn.number for turn in turns]
    if number not in numbers:
        return []
    if number == 1:
        return [turns[0]]
    place = max(numbers[0] == 1, min(numbers.index(number), len(turns) - width))
    return list(turns[place : place + width])


def first_full(turns: Sequence[Turn], capacity: int) -> int | None:
    """The number of the first turn behind more tokens than the cache holds; None: there is none."""
    return next((later.number for turn, later in pairwise(turns) if turn.length > capacity), None)


def rows(
    conversations: Sequence[Sequence[Turn]], numbers: Sequence[int], full: int | None, width: int
) -> list[list[str]]:
    """Medians of windows at these turns and at `full`, and times those at `full`."""

    def at(number: int) -> list[Turn]:
        return next(filter(None, (window(turns, number, width) for turns in conversations)), [])

    against = _medians(at(full)) if full else None
    found = []
    for number in sorted({*numbers, *([full] if full else [])}):
        if chosen := at(number):
            seconds, read = _medians(chosen)
            ratios = [f"{read / against[1]:.2f}", f"{seconds / against[0]:.2f}"] if against else ["-", "-"]
            found.append(
                [
                    f"{number:,}{' (first with a full cache)' * (number == full)}",
                    f"{statistics.median(turn.length for turn in chosen):,.0f}",
                    f"{statistics.median(turn.bytes for turn in chosen) / 1e3:,.0f}",
                    f"{read:,.0f}",
                    f"{1e3 * seconds:.1f}",
                    *ratios,
                ]
            )
    return found


def _medians(turns: Sequence[Turn]) -> tuple[float, float]:
    """Seconds to the first text, tokens read (at least 1)."""
    seconds = statistics.median(turn.seconds for turn in turns)
    return seconds, max(1.0, statistics.median(turn.read for turn in turns))
