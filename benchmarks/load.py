"""A server under load, as its clients see it: any OpenAI-compatible one (--base-url), or our own, started here.

Tables: streams (1 to 32 at once), mixed (what a long prompt does to running chats) and, of our own server only, engine
(through HTTP against the engine in this process) and burst (500 requests into a short queue).
A stream that ends early is followed by another prompt, so that as many run all the time; numbers are of the time until
the first of them has all its tokens. Tokens are counted by `usage` where the server gives it, else by chunks.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.burst import burst_table
from benchmarks.chats import Chat, Slot, chat
from benchmarks.http_client import HttpError, Target
from benchmarks.measure import fairness, milliseconds, percentile, table
from benchmarks.prompts import PROMPTS
from benchmarks.server_process import ServerProcess
from benchmarks.through_http import engine_table

TABLES = ("streams", "mixed", "engine", "burst")
CHATS = 4  # that run beside a long prompt


class Asked:
    """The bodies of a benchmark."""

    def __init__(self, model: str, arguments: argparse.Namespace) -> None:
        self._fixed = {"model": model, "stream": True, "temperature": arguments.temperature, **arguments.extra}
        if arguments.usage:
            self._fixed["stream_options"] = {"include_usage": True}
        self._words = random.Random(arguments.seed)

    def body(self, number: int, **changes: Any) -> dict[str, Any]:
        """Each number has a prompt and a seed of its own, as far as there are prompts."""
        kinds = sorted(
            range(len(PROMPTS)), key=lambda place: (place % 4, place)
        )  # one of each kind, then the next ones
        prompt = PROMPTS[kinds[number % len(PROMPTS)]]
        return self._fixed | {"messages": prompt.messages, "seed": number + 1} | changes

    def long(self, words: int) -> dict[str, Any]:
        """A prompt that no server has seen, and a short answer."""
        text = " ".join(self._words.choice(VOCABULARY) for _ in range(words))
        message = {"role": "user", "content": f"{text}\n\nHow would you describe this list of words?"}
        return self._fixed | {"messages": [message], "seed": 1, "max_tokens": 2}


VOCABULARY = sorted({word for prompt in PROMPTS for part in prompt.messages for word in part["content"].split()})


async def streams_table(target: Target, asked: Asked, counts: Sequence[int], tokens: int) -> None:
    rows = []
    for count in counts:
        slots = [Slot() for _ in range(count)]
        began = time.perf_counter()
        asks = [partial(_ask_in_place, asked, place, count) for place in range(count)]
        await asyncio.gather(*(slot.run(target, ask, tokens) for slot, ask in zip(slots, asks, strict=True)))
        rows.append(_streams_row(slots, began))
        print("streams:", *rows[-1], file=sys.stderr, flush=True)
    header = ["streams", "first token, ms p50 / p99", "gaps, ms p50 / p95 / p99", "tokens/s", "of one stream, p50"]
    fair = ["fair in tokens", "fair in chunks", "slowest to fastest, chunks"]
    table(f"Streams at once, {tokens} tokens each", [*header, *fair, "ended early", "failed"], rows)


def _ask_in_place(asked: Asked, place: int, count: int, number: int) -> dict[str, Any]:
    return asked.body(place + number * count)


def _streams_row(slots: Sequence[Slot], began: float) -> list[str]:
    chats = [chat for slot in slots for chat in slot.chats if chat.times]
    failed = Counter(reason for slot in slots for reason in slot.failures)
    reasons = ", ".join(f"{count} {reason}" for reason, count in failed.items()) or "0"
    well = [slot for slot in slots if slot.chats[0].times]
    until = min((slot.ended for slot in well if not slot.failures), default=time.perf_counter())
    tokens, chunks = [], []
    for slot in well:
        seconds = until - slot.chats[0].times[0]
        found = [at for chat in slot.chats for at in chat.times if at <= until]
        # one that has nothing when another has all is as unfair as can be
        tokens.append(sum(chat.tokens_until(until) for chat in slot.chats) / seconds if found else 0.0)
        chunks.append(len(found) / seconds if found else 0.0)
    together = sum(chat.tokens_until(until) for chat in chats) / (until - began)
    return [
        f"{len(slots)}",
        milliseconds([chat.first for chat in chats], 50, 99),
        milliseconds([gap for chat in chats for gap in chat.gaps], 50, 95, 99),
        f"{together:.1f}",
        f"{percentile(tokens, 50):.1f}",
        f"{fairness(tokens):.3f}",
        f"{fairness(chunks):.3f}",
        f"{min(chunks) / max(chunks):.2f}" if any(chunks) else "-",
        f"{sum(len(slot.chats) - 1 for slot in slots)}",
        reasons,
    ]


async def mixed_table(target: Target, asked: Asked, long_tokens: int, chunks: int) -> None:
    """chunks: of all chats together, that are measured undisturbed."""
    few = 500
    probe = await chat(target, asked.long(few))
    if probe.usage is None:
        print("mixed: the server gives no usage, so a word is taken for 1.3 tokens", file=sys.stderr)
    words = round(long_tokens * few / (probe.usage.prompt_tokens if probe.usage else 1.3 * few))
    alone = await chat(target, asked.long(words))
    chats: list[Chat] = []
    running = [asyncio.create_task(_endless(target, asked, place, chats)) for place in range(CHATS)]
    try:
        first = await _until(lambda: sum(bool(chat.times) for chat in chats) >= CHATS, running)
        await _until(lambda: sum(len(chat.times) for chat in chats) >= chunks, running)
        sent = time.perf_counter()
        beside = await chat(target, asked.long(words))
        ended = beside.times[0] if beside.times else beside.ended
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if problem := alone.failure or beside.failure:
        print(f"\nMixed: the long prompt failed: {problem}")
        return
    cells = []
    for start, end in ((first, sent), (sent, ended)):
        gaps = [
            later - earlier
            for chat in chats
            for earlier, later in zip(chat.times, chat.times[1:], strict=False)
            if start < later and earlier < end
        ]
        cells.append(1e3 * percentile(gaps, 95))
    read = alone.usage.prompt_tokens if alone.usage else long_tokens
    header = ["", f"{CHATS} chats or the prompt alone", "together", "ratio"]
    rows = [
        ["gap between a chat's chunks, p95, ms", f"{cells[0]:.1f}", f"{cells[1]:.1f}", f"{cells[1] / cells[0]:.2f}"],
        [
            "first token of the long prompt, s",
            f"{alone.first:.2f}",
            f"{beside.first:.2f}",
            f"{beside.first / alone.first:.2f}",
        ],
    ]
    table(f"{CHATS} chats, and a prompt of {read:,} tokens that arrives", header, rows)


async def _endless(target: Target, asked: Asked, place: int, chats: list[Chat]) -> None:
    """One chat after the other."""
    number = place
    while True:
        chats.append(Chat())
        mine = chats[-1]
        await chat(target, asked.body(number, max_tokens=4096), mine)
        if mine.failure:
            raise RuntimeError(f"a chat failed: {mine.failure}")
        number += CHATS


async def _until(condition: Any, tasks: Sequence["asyncio.Task[None]"]) -> float:
    """When it came true. Raises what a task has raised."""
    while not condition():
        await asyncio.sleep(0.005)
        for task in tasks:
            if task.done():
                task.result()
    return time.perf_counter()


async def model_of(target: Target) -> str:
    """The first of those that the server lists."""
    status, body = await target.ask("models")
    if status != 200:
        raise RuntimeError(f"GET {target.prefix}/models: {status} {body[:200]!r}")
    return str(json.loads(body)["data"][0]["id"])


@contextlib.contextmanager
def served(arguments: argparse.Namespace, **settings: Any) -> Iterator[tuple[Target, ServerProcess | None]]:
    """The server named, or one of our own."""
    if arguments.base_url:
        yield Target.of(arguments.base_url, arguments.api_key), None
    else:
        with ServerProcess(arguments.serve, **{"threads": arguments.threads, **settings}) as server:
            yield server.target, server


async def from_outside(target: Target, arguments: argparse.Namespace) -> None:
    """What can be told of any server."""
    asked = Asked(arguments.model or await model_of(target), arguments)
    warm = Slot()
    await warm.run(target, lambda number: asked.body(40 + number), 16)
    if warm.failures:
        raise RuntimeError(f"the first request fails: {warm.failures[0]}")
    if "streams" in arguments.tables:
        await streams_table(target, asked, arguments.streams, arguments.tokens)
    if "mixed" in arguments.tables:
        await mixed_table(target, asked, arguments.long_tokens, CHATS * arguments.tokens)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--base-url", help="of a server that runs; without it our own is started")
    add("--api-key")
    add("--model", help="the name to ask for (default: the first that the server lists)")
    add("--serve", default="default", metavar="MODEL", help="what our own server serves, as of sinkahead serve")
    add("--threads", type=int, help="of our own server")
    add("--tables", type=lambda text: text.split(","), default=list(TABLES), metavar="LIST", help=", ".join(TABLES))
    add("--streams", type=lambda text: [int(count) for count in text.split(",")], default=[1, 2, 4, 8, 16, 32])
    add("--tokens", type=int, default=128, help="of a stream (default: 128)")
    add("--long-tokens", type=int, default=20_000, help="of the long prompt (default: 20,000)")
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=random.randrange(2**32), help="of the long prompt's words")
    add("--extra", type=json.loads, default={}, metavar="JSON", help='more of each body, as {"ignore_eos": true}')
    add("--no-usage", dest="usage", action="store_false", help="for servers that know no stream_options")
    add("--requests", type=int, default=500, help="of the burst (default: 500)")
    add("--places", type=int, default=8, help="of the server that the burst meets (default: 8)")
    add("--repeats", type=int, default=3, help="of the comparison with the engine (default: 3)")
    return parser.parse_args()


def tables(arguments: argparse.Namespace) -> None:
    if {"streams", "mixed"} & set(arguments.tables):
        with served(arguments) as (target, server):
            print(f"{arguments.base_url or 'sinkahead serve'}, at most {arguments.tokens} tokens", flush=True)
            asyncio.run(from_outside(target, arguments))
            if server is not None:
                code, left = server.stop()
                print(f"\nThe server ended with exit code {code}{', leaving ' * bool(left)}{', '.join(left)}.")
    if arguments.base_url:
        return
    if "engine" in arguments.tables:
        engine_table(arguments.serve, arguments.tokens, arguments.repeats, threads=arguments.threads)
    if "burst" in arguments.tables:
        burst_table(arguments.serve, arguments.requests, arguments.places, threads=arguments.threads)


def main() -> None:
    arguments = parsed()
    try:
        tables(arguments)
    except (HttpError, OSError, RuntimeError) as error:
        sys.exit(f"load: {error}")


if __name__ == "__main__":
    main()
