"""What a turn costs, early and late in a conversation whose client sends all of it again at every turn.

Of any OpenAI-compatible server (--base-url), or our own, started here: time to the first token and tokens read (prompt
tokens that were not cached) against the turn's number, and times the first turn after the cache was full.
--seed-history begins a second conversation late, with made-up messages, where turns are too many to be had one by one.
--idle, of our own server only: sessions that come back from the device, host memory, the disk, and from nothing.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.conversation import Conversation, Turn, first_full, rows
from benchmarks.http_client import HttpError, Target
from benchmarks.idle import idle_table, sizes
from benchmarks.load import model_of, served
from benchmarks.measure import table

HEADER = ["turn", "tokens so far", "body, kB", "tokens read", "first token, ms", "read", "time"]


async def converse(target: Target, arguments: argparse.Namespace) -> list[Conversation]:
    """One conversation from its beginning, and one that begins late where that is asked for."""
    model = arguments.model or await model_of(target)
    fixed: dict[str, Any] = {"model": model, "stream": True, "temperature": 0, "max_tokens": arguments.tokens}
    fixed |= {"stream_options": {"include_usage": True}} | arguments.extra
    if not arguments.base_url:
        fixed["min_tokens"] = arguments.tokens  # each answer is as long as the others
    begin = partial(Conversation, target, fixed, arguments.words)
    warm = begin(random.Random(arguments.seed + 1))
    await warm.go_on(lambda turn: turn.number == 2)
    early, turns, history = begin(random.Random(arguments.seed)), arguments.turns, arguments.seed_history
    if not history:
        await early.go_on(lambda turn: turn.number >= turns)
        found = [early]
    else:
        past_full = arguments.capacity * 5 // 4
        await early.go_on(
            lambda turn: (
                turn.length > past_full and len(early.turns) > arguments.window and turn.number >= arguments.early
            )
        )
        late = begin(random.Random(arguments.seed + 2))
        late.make_up(history, arguments.pad)
        await late.go_on(lambda turn: turn.number >= turns)
        found = [early, late]
    return found


def turns_table(found: Sequence[Sequence[Turn]], arguments: argparse.Namespace) -> None:
    """The second conversation's first turn, which reads all of its history, is told of apart."""
    full = first_full(found[0], arguments.capacity)
    parts = [found[0], *(late[1:] for late in found[1:])]
    lines = rows(parts, [*arguments.at, arguments.turns], full, arguments.window)
    title = f"A turn's cost by its number: {arguments.words} words a message, {arguments.tokens} tokens an answer"
    table(f"{title}; medians of {arguments.window} turns", HEADER, lines)
    print("\n*read* and *time*: tokens read and time to the first token, times those of the first full turns.")
    if len(found) > 1 and found[1]:
        first = found[1][0]
        print(
            f"\nThe made-up history: {first.read:,} tokens read in {first.seconds:.1f} s, {first.bytes / 1e6:.1f} MB."
        )


def plot(found: Sequence[Sequence[Turn]], capacity: int, path: Path) -> None:
    """Time to the first token and tokens read against the turn's number."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 1, figsize=(10, 7), dpi=120, sharex=True, layout="constrained")
    full = first_full(found[0], capacity)
    for number, turns in enumerate(found):
        shown = turns[1:]  # the first one reads all there is
        numbers = [turn.number for turn in shown]
        name = "from its beginning" if number == 0 else "begun late"
        panels[0].plot(numbers, [1e3 * turn.seconds for turn in shown], ".", markersize=4, label=name)
        panels[1].plot(numbers, [turn.read for turn in shown], ".", markersize=4)
    for axes, label in zip(panels, ("time to the first token, ms", "tokens read"), strict=True):
        axes.set(ylabel=label, ylim=(0, None))
        if full:
            axes.axvline(full, color="grey", linewidth=0.8, linestyle=":")
    panels[1].set(xlabel="turn; the dotted line: the first one with a full cache")
    if len(found) > 1:
        panels[0].legend(frameon=False)
        panels[1].set_xscale("log")  # most turns between them were not had
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def idle(arguments: argparse.Namespace) -> None:
    """Memory for a fifth of the sessions in places, and for a quarter parked; the rest is on the disk."""
    capacity, count = arguments.capacity, arguments.idle
    with served(arguments, capacity=capacity) as (target, server):
        assert server is not None
        model = arguments.model or asyncio.run(model_of(target))
        in_place, packed = asyncio.run(sizes(server, model, capacity))
        server.stop()
    places, parked = max(2, count // 5), max(2, count // 4)
    memory, host = f"{places * in_place}", f"{int((parked + 0.5) * packed)}"
    print(f"idle: {places} places of {in_place / 1e6:.1f} MB, {parked} parked of {packed / 1e6:.1f} MB", flush=True)
    with served(arguments, capacity=capacity, memory=memory, host_memory=host) as (_, server):
        assert server is not None
        visits = arguments.visits or 4 * count
        asyncio.run(idle_table(server, model, capacity, count, visits, arguments.seed))
        server.stop()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--base-url", help="of a server that runs; without it our own is started")
    add("--api-key")
    add("--model", help="the name to ask for (default: the first that the server lists)")
    add("--serve", default="default", metavar="MODEL", help="what our own server serves, as of sinkahead serve")
    add("--threads", type=int, help="of our own server")
    add("--capacity", type=int, default=1024, help="tokens, of our own server; of others: what counts as full")
    add("--turns", type=int, default=200, help="0: none, only --idle (default: 200)")
    add("--at", type=lambda text: [int(turn) for turn in text.split(",")], default=[1, 5, 50, 100, 200], metavar="LIST")
    add("--words", type=int, default=20, help="of each new message (default: 20)")
    add("--tokens", type=int, default=16, help="of an answer (default: 16)")
    add("--window", type=int, default=7, help="turns that a median is of (default: 7)")
    add("--seed-history", type=int, default=0, metavar="N", help="messages, of a second conversation that begins late")
    add("--pad", type=int, default=900, help="characters more in each of them, of few tokens (default: 900)")
    add("--early", type=int, default=50, help="with --seed-history: turns of the first conversation, at least")
    add("--extra", type=json.loads, default={}, metavar="JSON", help='more of each body, as {"ignore_eos": true}')
    add("--idle", type=int, default=0, metavar="SESSIONS", help="that come back at random, as 50")
    add("--visits", type=int, help="of idle sessions (default: 4 of each)")
    add("--seed", type=int, default=0)
    add("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args()
    if arguments.seed_history % 2 or arguments.seed_history // 2 >= max(1, arguments.turns):
        parser.error("--seed-history must be even, and of fewer turns than --turns")
    if arguments.idle and arguments.base_url:
        parser.error("--idle is of our own server only")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    if arguments.turns:
        with served(arguments, capacity=arguments.capacity) as (target, server):
            conversations = asyncio.run(converse(target, arguments))
            if server is not None:
                server.stop()
        found = [one.turns for one in conversations]
        turns_table(found, arguments)
        if arguments.plot:
            plot(found, arguments.capacity, arguments.plot)
        for one in conversations:
            if one.failure:
                raise RuntimeError(f"a turn failed after {len(one.messages)} messages: {one.failure}")
    if arguments.idle:
        idle(arguments)


def main() -> None:
    try:
        run(parsed())
    except (HttpError, OSError, RuntimeError, TimeoutError) as error:
        sys.exit(f"turns: {error}")


if __name__ == "__main__":
    main()
