"""What it costs to follow a grammar, and what forced tokens bring: texts of the default model held to JSON schemas."""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace
from transformers import AutoTokenizer

from benchmarks.measure import milliseconds, table
from decoding.build import build
from decoding.constraint import Constraint
from decoding.engine import Engine
from decoding.grammar import json_grammar
from decoding.options import EngineOptions
from decoding.processors import Processor
from decoding.turn import Drafting, Output, Sampling, Turn
from server import model_files

_PERSON: dict[str, Any] = {
    "name": {"type": "string", "maxLength": 40},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "occupation": {"type": "string", "maxLength": 40},
    "colour": {"enum": ["red", "green", "blue"]},
}
_MEMBERS = {"type": "object", "properties": _PERSON, "required": list(_PERSON), "additionalProperties": False}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": _MEMBERS,
    "three people": {
        "type": "object",
        "properties": {"people": {"type": "array", "items": _MEMBERS, "minItems": 3, "maxItems": 3}},
        "required": ["people"],
        "additionalProperties": False,
    },
    "any object": {"type": "object"},
}
ARMS = {
    "plain": Drafting(strategy="autoregressive"),
    "auto": Drafting(),
    "without forced": Drafting(sources=("suffix", "recycling", "prediction", "pool")),
}
PROMPT = "Invent some people. Answer in JSON, with name, age, occupation and favourite colour of each."


class Clock:
    """Seconds that a method takes, call by call."""

    def __init__(self, owner: type, name: str) -> None:
        self.seconds: list[float] = []
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **more)
            finally:
                self.seconds.append(time.perf_counter() - began)

        setattr(owner, name, timed)


def generate(engine: Engine, turn: Turn) -> tuple[list[int], int, float]:
    """Text, steps and seconds without the prompt's."""
    engine.open(turn.session, 4)
    engine.start(turn)
    text: list[int] = []
    steps, began = 0, 0.0
    while engine.has_work:
        for result in engine.step():
            assert isinstance(result, Output), result
            began = began or time.perf_counter()
            text += result.tokens
            steps += 1
    seconds = time.perf_counter() - began
    engine.close(turn.session)
    return text, steps, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.0)
    asked = parser.parse_args()
    folder = model_files.resolve(asked.model)
    engine = build(EngineOptions(model=str(folder), dtype=asked.dtype, threads=asked.threads))
    template = AutoTokenizer.from_pretrained(folder)
    chat = template.apply_chat_template(
        [{"role": "user", "content": PROMPT}], tokenize=False, add_generation_prompt=True
    )
    prompt = template.encode(chat, add_special_tokens=False)
    clocks = {
        "masks": Clock(Constraint, "allowed"),
        "rows masked": Clock(Processor, "process"),
        "places sought": Clock(Constraint, "seek"),
        "guesses filtered": Clock(Constraint, "allows"),
    }
    speeds, costs = [], []
    for name, schema in SCHEMAS.items():
        turn = Turn(
            session="s", tokens=prompt, sampling=Sampling(seed=1, temperature=asked.temperature),
            max_tokens=asked.tokens, end_ids=engine.facts.end_ids, grammar=json_grammar(schema),
        )  # fmt: skip
        texts = []
        for arm, drafting in ARMS.items():
            generate(
                engine, replace(turn, drafting=drafting)
            )  # warms up: first looks at a state of a lexer take longer
            for clock in clocks.values():
                clock.seconds.clear()
            text, steps, seconds = generate(engine, replace(turn, drafting=drafting))
            texts.append(text)
            speeds.append([name, arm, len(text), f"{len(text) / steps:.2f}", f"{1e3 * seconds / len(text):.1f} ms"])
            masks = clocks["rows masked"].seconds
            beside = sum(clocks["guesses filtered"].seconds) + sum(clocks["places sought"].seconds)
            costs.append(
                [
                    name,
                    arm,
                    milliseconds(clocks["masks"].seconds, 50, 95, 100),
                    milliseconds(masks, 50, 95, 100),
                    f"{100 * sum(masks) / seconds:.1f}%",
                    f"{100 * (sum(masks) + beside) / seconds:.1f}%",
                ]
            )
        assert all(text == texts[0] for text in texts), "drafts have changed a text"
    title = f"{folder.name}, {engine.facts.dtype}, {torch.get_num_threads()} threads, temperature {asked.temperature}"
    table(f"Texts by schema; {title}", ["schema", "drafts", "tokens", "tokens a step", "a token"], speeds)
    table(
        "What the grammar costs: milliseconds (median, 95%, most), and parts of the time",
        ["schema", "drafts", "mask", "row processed", "rows", "rows and drafts"],
        costs,
    )


if __name__ == "__main__":
    main()
