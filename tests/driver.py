"""Runs turns on an engine until they are done, as the worker does."""

from collections.abc import Mapping, Sequence

from decoding.engine import Engine
from decoding.turn import Drafting, Output, Sampling, Turn

GREEDY = Sampling(seed=0, temperature=0)


def run(engine: Engine, turns: Mapping[str, Turn]) -> dict[str, list[int]]:
    """Starts all turns (their sessions must be open) and returns what each generated."""
    for turn in turns.values():
        engine.start(turn)
    texts: dict[str, list[int]] = {name: [] for name in turns}
    while engine.has_work:
        for result in engine.step():
            assert isinstance(result, Output), result
            texts[result.session].extend(result.tokens)
    return texts


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    sampling: Sequence[Sampling] | Sampling = GREEDY,
    sinks: int = 4,
    end_ids: Sequence[int] = (),
    drafting: Drafting | None = None,
) -> list[list[int]]:
    """One new session for each prompt, all at once; the sessions are closed again."""
    samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    turns = {
        str(index): Turn(
            session=str(index),
            tokens=list(prompt),
            sampling=one,
            max_tokens=max_tokens,
            end_ids=list(end_ids),
            drafting=drafting,
        )
        for index, (prompt, one) in enumerate(zip(prompts, samplings, strict=True))
    }
    for name in turns:
        engine.open(name, sinks)
    texts = run(engine, turns)
    for name in turns:
        engine.close(name)
    return list(texts.values())
