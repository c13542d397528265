"""Sessions to talk to: small engines, texts, and turns."""

import random
from array import array
from pathlib import Path
from typing import Any

from decoding.build import build
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.turn import Sampling, Turn
from tests.driver import GREEDY

PHRASE = random.Random(3).choices(range(3, 97), k=9)


def octets(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def text_of(length: int, seed: int = 0) -> list[int]:
    """Random tokens with a phrase that comes again, so that there is something to draft."""
    draw = random.Random(seed)
    ids: list[int] = []
    while len(ids) < length:
        ids += PHRASE if draw.random() < 0.5 else draw.choices(range(3, 97), k=5)
    return ids[:length]


def turn_of(session: str, tokens: list[int], max_tokens: int = 20, sampling: Sampling = GREEDY) -> Turn:
    return Turn(session=session, tokens=tokens, sampling=sampling, max_tokens=max_tokens, end_ids=[])


def engine_for(folder: Path, **options: Any) -> Engine:
    changes: dict[str, Any] = {"dtype": "float32", "capacity": 48, "block": 8, "memory_bytes": 2**28, "max_rows": 40}
    return build(EngineOptions(model=str(folder), device="cpu", **changes | options))
