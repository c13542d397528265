"""Which session forwards how many tokens in the next step. Integers only, no torch."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from decoding.budget import worth


class Share(NamedTuple):
    """A session's rows in a step. `complete`: it forwards all that it has, so its last row decides the next token."""

    session: str
    rows: int
    complete: bool

    @property
    def decodes(self) -> bool:
        """Whether it forwards its pending token, or the one token of its prompt."""
        return self.complete and self.rows == 1


def plan(
    waiting: Iterable[tuple[str, int]], max_rows: int, prompt_rows: Callable[[int], int] | None = None
) -> list[Share]:
    """Shares of one step for sessions with so many tokens to forward (each at least one), in order of precedence.

    Sessions that decode (one token) go first, so that a long prompt never stalls a running stream. The rows that are
    left, at least one where there can be two, are divided among the prompts, shorter ones first: what they do not
    need goes to the longer, and none waits for another to end. A step takes at most max_rows rows.
    prompt_rows: how many rows of prompts may slow down so many sessions that decode; None: any number.
    """
    waiting = list(waiting)
    prompts = sorted((entry for entry in waiting if entry[1] > 1), key=lambda entry: entry[1])
    most = max_rows - 1 if prompts and max_rows > 1 else max_rows
    shares = [Share(session, 1, True) for session, tokens in waiting if tokens == 1][:most]
    room = max_rows - len(shares)
    if shares and prompts and prompt_rows is not None:
        room = min(room, max(1, prompt_rows(len(shares))))
    for index, (session, tokens) in enumerate(prompts):
        rows = min(tokens, room, max(1, room // (len(prompts) - index)))
        if rows:
            shares.append(Share(session, rows, rows == tokens))
            room -= rows
    return shares


def cuts(chances: Sequence[Sequence[float]], certain: int, room: int, cost: Callable[[int], float]) -> list[int]:
    """How many of its guesses each session forwards: the likeliest of all sessions, as long as they are worth it.

    chances: of each session's guesses, falling; room: most guesses. certain, cost: as `worth` takes them.
    """
    ranked = sorted(
        ((-chance, session, index) for session, own in enumerate(chances) for index, chance in enumerate(own))
    )[:room]
    counts = [0] * len(chances)
    for _, session, _ in ranked[: worth([-unlikely for unlikely, _, _ in ranked], certain, cost)]:
        counts[session] += 1
    return counts
