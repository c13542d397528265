"""A process that commits turns until it is killed: `python -m tests.server.scribe FOLDER`.

It prints "SESSION TURN" when a turn is acknowledged. Turn n adds two messages and n % 7 + 1 ids, all of them n; each
fifth takes the place of the one before it.
"""

import asyncio
import sys
from pathlib import Path

from server.journal import Journal
from server.record import Key, Record, StoredMessage

KEY = Key(b"key", "chat")
FINGERPRINT = b"model"
NUM_SESSIONS = 4


def turn(
    key: Key = KEY,
    texts: tuple[str, str] = ("question", "answer"),
    kept: tuple[int, int] = (0, 0),  # messages, ids
    ids: tuple[int, ...] = (1, 2, 3, 4, 5),
    now: float = 1.0,
) -> Record:
    """A question and its answer, whose last id is the last one."""
    length = kept[1] + len(ids)
    messages = [
        StoredMessage({"role": "user", "content": texts[0]}, length - 1),
        StoredMessage({"role": "assistant", "content": texts[1]}, length),
    ]
    return Record(key, True, FINGERPRINT, b"tools", 4, kept[0], messages, kept[1], ids, 0.0, now)


def turns_left(num_turns: int) -> list[int]:
    """Those that no later one has replaced."""
    turns: list[int] = []
    for n in range(num_turns):
        if n % 5 == 4:
            turns.pop()
        turns.append(n)
    return turns


async def talk(journal: Journal, session: int) -> None:
    before = kept = (0, 0)
    for n in range(10**6):
        start = before if n % 5 == 4 else kept
        num_ids = n % 7 + 1
        await journal.commit(turn(Key(b"key", str(session)), (f"{n}", f"{n}" * 300), start, (n,) * num_ids))
        sys.stdout.write(f"{session} {n}\n")
        sys.stdout.flush()
        before, kept = start, (start[0] + 2, start[1] + num_ids)


async def main() -> None:
    journal = await Journal.open(Path(sys.argv[1]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*(talk(journal, session) for session in range(NUM_SESSIONS)))


if __name__ == "__main__":
    asyncio.run(main())
