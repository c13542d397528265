"""What the way through HTTP costs: our server's tokens/s against those of the engine alone, and time on the CPU.

The same prompts, seeds, drafting and settings, in the same order, so the same texts; first the server, then the engine.
"""

import asyncio
import statistics
import time
from typing import Any

from benchmarks.chats import Chat, together
from benchmarks.measure import table
from benchmarks.prompts import PROMPTS
from benchmarks.server_process import ServerProcess
from decoding.turn import Fault, Sampling, Turn
from server import model_files
from server.settings import Settings
from server.template import ChatTemplate

STREAMS = 8
NAME = "served"


def engine_table(model: str, tokens: int, repeats: int, **settings: Any) -> None:
    """Each repeat has prompts of its own; one before them warms up."""
    batches = [
        [_body((batch * STREAMS + stream) % len(PROMPTS), batch + 1, tokens) for stream in range(STREAMS)]
        for batch in range(repeats + 1)
    ]
    served, spent_served = _through_http(model, batches, settings)
    alone = _engine_alone(model, batches, settings)
    rows, ratios = [], []
    for number in range(1, repeats + 1):
        chats, seconds = served[number]
        count, engine_seconds, _ = alone[number]
        http_count = sum(chat.tokens for chat in chats)
        http_speed, speed = http_count / seconds, count / engine_seconds
        ratios.append(http_speed / speed)
        rows.append([number, f"{http_count:,}", f"{count:,}", f"{http_speed:.1f}", f"{speed:.1f}", f"{ratios[-1]:.3f}"])
    header = ["batch", "tokens, HTTP", "tokens, engine", "tokens/s, HTTP", "tokens/s, engine", "ratio"]
    table(f"{STREAMS} streams through HTTP and in the engine alone, {tokens} tokens each", header, rows)
    chunks = sum(len(chat.times) for chats, _ in served[1:] for chat in chats)
    walls = [sum(seconds for _, seconds in served[1:])] * 2 + [sum(seconds for _, seconds, _ in alone[1:])]
    cpu = (*spent_served, sum(spent for _, _, spent in alone[1:]))
    rows = [
        [name, f"{spent:.2f} s", f"{1e3 * spent / chunks:.2f} ms", f"{spent / wall:.1%}"]
        for name, spent, wall in zip(("API process", "worker process", "engine alone"), cpu, walls, strict=True)
    ]
    print(f"\nMedian ratio: {statistics.median(ratios):.3f}.")
    table(f"Time on the CPU, {chunks:,} chunks through HTTP", ["", "in all", "a chunk", "of the time"], rows)


def _body(place: int, seed: int, tokens: int) -> dict[str, Any]:
    return {
        "model": NAME,
        "messages": PROMPTS[place].messages,
        "temperature": 0.8,
        "seed": seed,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _through_http(
    model: str, batches: list[list[dict[str, Any]]], settings: dict[str, Any]
) -> tuple[list[tuple[list[Chat], float]], tuple[float, float]]:
    """The answers of each batch and the seconds it took; seconds on the CPU of both processes, but for the first."""

    async def run() -> list[tuple[list[Chat], float]]:
        found = []
        for bodies in batches:
            began = time.perf_counter()
            chats = await together(server.target, bodies)
            found.append((chats, max(chat.ended for chat in chats) - began))
            if failed := [chat.failure for chat in chats if chat.failure]:
                raise RuntimeError(f"a chat failed: {failed[0]}")
            if len(found) == 1:
                before.extend(server.cpu_seconds())
        return found

    before: list[float] = []
    with ServerProcess(model, served_model_name=NAME, **settings) as server:
        found = asyncio.run(run())
        api, worker = server.cpu_seconds()
        server.stop()
    return found, (api - before[0], worker - before[1])


def _engine_alone(
    model: str, batches: list[list[dict[str, Any]]], settings: dict[str, Any]
) -> list[tuple[int, float, float]]:
    """Tokens, seconds and seconds on the CPU of each batch."""
    from decoding.build import build

    path = model_files.resolve(model)
    given = {name: value for name, value in settings.items() if value is not None}
    engine = build(Settings.load({"model": model, **given}).engine_options(path))
    template = ChatTemplate.load(path)
    found = []
    for bodies in batches:
        asked = []
        for number, body in enumerate(bodies):
            prompt = template.encode(body["messages"])
            sinks = template.pinned(body["messages"], prompt)
            sampling = Sampling(seed=body["seed"], temperature=body["temperature"])
            turn = Turn(
                session=str(number),
                tokens=prompt,
                sampling=sampling,
                max_tokens=body["max_tokens"],
                end_ids=engine.facts.end_ids,
            )
            asked.append((turn, sinks))
        count, began, spent = 0, time.perf_counter(), time.process_time()
        for turn, sinks in asked:
            engine.open(turn.session, sinks)
            engine.start(turn)
        while engine.has_work:
            for output in engine.step():
                if isinstance(output, Fault):
                    raise RuntimeError(output.reason)
                count += len(output.tokens)
        found.append((count, time.perf_counter() - began, time.process_time() - spent))
        for turn, _ in asked:
            engine.close(turn.session)
    return found
