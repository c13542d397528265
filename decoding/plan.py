"""Which session forwards how many tokens in the next step. Integers only, no torch."""

from collections.abc import Iterable
from typing import NamedTuple


class Share(NamedTuple):
    """A session's rows in a step. `complete`: it forwards all that it has, so its last row decides the next token."""

    session: str
    rows: int
    complete: bool


def plan(waiting: Iterable[tuple[str, int]], max_rows: int) -> list[Share]:
    """Shares of one step for sessions with so many tokens to forward (each at least one), in order of precedence.

    Sessions that decode (one token) go first, so that a long prompt never stalls a running stream; chunks of prompts
    fill the rows that are left. A step takes at most max_rows rows.
    """
    waiting = list(waiting)
    shares = [Share(session, 1, True) for session, tokens in waiting if tokens == 1][:max_rows]
    room = max_rows - len(shares)
    for session, tokens in waiting:
        if tokens > 1 and room:
            rows = min(tokens, room)
            shares.append(Share(session, rows, rows == tokens))
            room -= rows
    return shares
