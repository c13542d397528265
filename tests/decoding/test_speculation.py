"""Whatever is drafted, the text is that of plain decoding: the engine on a tiny model, in float32."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from transformers import LlamaForCausalLM

from decoding.budget import Costs
from decoding.build import build
from decoding.engine import Engine
from decoding.options import EngineOptions
from decoding.turn import Drafting, Output, Sampling, SourceName, Turn
from tests.driver import GREEDY

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
CHEAP = Costs([1, 128], [1, 2], [[1.0, 1.1], [1.0, 1.1]])  # rows cost next to nothing
PLAIN = Drafting(strategy="autoregressive")
PHRASE = random.Random(5).choices(range(3, 259), k=12)
PROMPTS = [[7], [7, 8], PHRASE * 3, random.Random(1).choices(range(3, 259), k=70)]
SAMPLINGS = [GREEDY, Sampling(seed=3, temperature=0.5), Sampling(seed=4, temperature=1.0, top_p=0.9, min_p=0.02)]
ALL: tuple[SourceName, ...] = ("suffix", "recycling", "prediction", "pool")


def lookahead(window: int, ngram: int, guesses: int, sources: tuple[SourceName, ...] = ALL) -> Drafting:
    return Drafting(strategy="lookahead", window=window, ngram=ngram, guesses=guesses, sources=sources)


DRAFTINGS = [
    Drafting(),
    *(Drafting(sources=(source,)) for source in ALL[:3]),
    Drafting(sources=()),
    *(Drafting(strategy="jacobi", window=width) for width in (1, 2, 9)),
    *(
        lookahead(window, ngram, guesses)
        for window, ngram, guesses in [(1, 2, 0), (1, 2, 3), (1, 5, 2), (4, 2, 0), (5, 4, 5), (3, 6, 1), (6, 3, 9)]
    ),
    *(lookahead(4, 3, 4, (source,)) for source in ALL),
    lookahead(4, 3, 4, ()),
]


def engine_for(model: Path, device: str = "cpu", **options: Any) -> Engine:
    changes: dict[str, Any] = {"capacity": 48, "block": 8, "memory_bytes": 2**28, "dtype": "float32"} | options
    return build(EngineOptions(model=str(model), device=device, **changes))


def generate(
    engine: Engine, prompts: list[list[int]], samplings: list[Sampling], draftings: list[Drafting], **turn: Any
) -> tuple[list[list[int]], int]:
    """Texts of turns that run at once, and the steps it took."""
    more: dict[str, Any] = {"max_tokens": 60, "end_ids": []} | turn
    texts: dict[str, list[int]] = {}
    for index, (prompt, sampling, drafting) in enumerate(zip(prompts, samplings, draftings, strict=True)):
        name = str(index)
        engine.open(name, 4)
        engine.start(Turn(session=name, tokens=prompt, sampling=sampling, drafting=drafting, **more))
        texts[name] = []
    steps = 0
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output), output
            texts[output.session] += output.tokens
            assert output.length == len(prompts[int(output.session)]) + len(texts[output.session])
        steps += 1
    for name in texts:
        engine.close(name)
    return list(texts.values()), steps


@pytest.fixture(scope="module", params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["bits", "fast"])
def engine(request: pytest.FixtureRequest, tiny_model: Path, device: str) -> Engine:
    if device != "cpu" and request.param == "bits":
        pytest.skip("bits are kept on a CPU")
    return engine_for(tiny_model, device, exact=request.param)


@pytest.fixture(scope="module")
def want(engine: Engine) -> list[list[list[int]]]:
    """Texts of plain decoding, by sampling and prompt."""
    return [[generate(engine, [prompt], [sampling], [PLAIN])[0][0] for prompt in PROMPTS] for sampling in SAMPLINGS]


@pytest.mark.parametrize("drafting", DRAFTINGS, ids=repr)
def test_no_strategy_size_or_source_changes_a_text(
    engine: Engine, want: list[list[list[int]]], drafting: Drafting
) -> None:
    """Alone and in a batch, past evictions, greedy and sampled, with what is remembered from texts before."""
    for sampling, texts in zip(SAMPLINGS, want, strict=True):
        assert generate(engine, PROMPTS[2:3], [sampling], [drafting], prediction=texts[2][:40])[0] == texts[2:3]
        together, _ = generate(engine, PROMPTS, [sampling] * 4, [drafting] * 4, prediction=texts[3])
        assert together == texts


def test_strategies_run_side_by_side(engine: Engine, want: list[list[list[int]]]) -> None:
    cases = list(itertools.product(range(3), range(4)))
    draftings = [DRAFTINGS[index % len(DRAFTINGS)] for index in range(len(cases))]
    texts, _ = generate(engine, [PROMPTS[p] for _, p in cases], [SAMPLINGS[s] for s, _ in cases], draftings)
    assert texts == [want[s][p] for s, p in cases]


@pytest.mark.parametrize("policy", ["window", "recompute", "dense"])
def test_with_every_policy(tiny_model: Path, policy: str) -> None:
    engine = engine_for(tiny_model, policy=policy, capacity=96 if policy == "dense" else 48)
    for drafting in (Drafting(), Drafting(strategy="jacobi", window=5), lookahead(4, 3, 4)):
        for sampling in SAMPLINGS[:2]:
            prompts = PROMPTS[:3]
            plain, _ = generate(engine, prompts, [sampling] * 3, [PLAIN] * 3)
            assert generate(engine, prompts, [sampling] * 3, [drafting] * 3)[0] == plain


@pytest.fixture(scope="module")
def parrot(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Engine:
    """A model that sees only the last token, so that its texts go round in circles."""
    folder = tmp_path_factory.mktemp("parrot")
    model = LlamaForCausalLM.from_pretrained(tiny_model)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= 0
    model.save_pretrained(folder)
    built = engine_for(folder, engine.facts.device, exact=engine.facts.exact)
    built.costs = CHEAP
    return built


@pytest.mark.parametrize(
    "drafting",
    [
        Drafting(),
        Drafting(sources=("suffix",)),
        Drafting(sources=("recycling",)),
        lookahead(5, 4, 5),
        lookahead(5, 4, 5, ("pool",)),
        lookahead(5, 4, 5, ()),
        Drafting(strategy="jacobi", window=8),
    ],
    ids=repr,
)
def test_steps_yield_several_tokens_where_a_text_repeats_itself(parrot: Engine, drafting: Drafting) -> None:
    plain, steps = generate(parrot, PROMPTS[1:2], [GREEDY], [PLAIN], max_tokens=200)
    text, fewer = generate(parrot, PROMPTS[1:2], [GREEDY], [drafting], max_tokens=200)
    assert text == plain
    assert fewer < 0.6 * steps


def test_a_prediction_that_is_right_is_taken_in_long_steps(engine: Engine) -> None:
    sampling = Sampling(seed=8, temperature=0.9)
    (text,), steps = generate(engine, PROMPTS[3:], [sampling], [PLAIN], max_tokens=60)
    only = Drafting(sources=("prediction",))
    engine.costs = CHEAP
    for prediction in (text, [*text[:20], 5, 6, *text[22:]]):
        got, fewer = generate(engine, PROMPTS[3:], [sampling], [only], max_tokens=60, prediction=prediction)
        assert got == [text]
        assert fewer < steps / 2


def first_long_run(engine: Engine, sampling: Sampling, drafting: Drafting, **turn: Any) -> Iterator[list[int]]:
    engine.open("s", 4)
    engine.start(Turn(session="s", tokens=PROMPTS[3], sampling=sampling, drafting=drafting, **turn))
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output)
            yield output.tokens
    engine.close("s")


def test_an_end_token_inside_a_run_ends_the_text_there(engine: Engine, want: list[list[list[int]]]) -> None:
    """Any id of the set; what was accepted behind it is in no output, no count and not in the session."""
    drafting = lookahead(5, 4, 5)
    runs = list(first_long_run(engine, GREEDY, drafting, max_tokens=60, end_ids=[]))
    text = [token for run in runs for token in run]
    other = next(token for token in range(259) if token not in text)
    assert sum(len(run) > 1 for run in runs) > 3
    for run in runs:
        for end in run[:-1]:  # not the last of its step
            at = text.index(end)
            for drafted in (drafting, Drafting(), PLAIN):
                cut = list(first_long_run(engine, GREEDY, drafted, max_tokens=60, end_ids=[other, end]))
                assert [token for part in cut for token in part] == text[: at + 1]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 13, 31])
def test_max_tokens_inside_a_run(engine: Engine, want: list[list[list[int]]], limit: int) -> None:
    for drafting in (Drafting(), lookahead(5, 4, 5), Drafting(strategy="jacobi", window=8)):
        assert generate(engine, PROMPTS, [GREEDY] * 4, [drafting] * 4, max_tokens=limit)[0] == [
            text[:limit] for text in want[0]
        ]


def test_finishing_inside_a_run_and_going_on_equals_plain_decoding(engine: Engine) -> None:
    """What was accepted and rolled back leaves nothing: not in the cache, not in what is drafted from."""
    texts = []
    for drafting in (PLAIN, Drafting(), lookahead(5, 4, 5)):
        engine.open("s", 4)
        text: list[int] = []
        for keep, tokens in ((80, PROMPTS[3]), (85, [9, 9]), (70, PHRASE), (100, PHRASE)):
            engine.start(
                Turn(session="s", tokens=tokens, sampling=GREEDY, max_tokens=60, end_ids=[], drafting=drafting)
            )
            while engine.has_work:
                for output in engine.step():
                    assert isinstance(output, Output)
                    text += output.tokens
            engine.finish("s", keep)
        engine.close("s")
        texts.append(text)
    assert texts[1] == texts[0]
    assert texts[2] == texts[0]


def test_rows_are_bounded_whatever_is_asked(tiny_model: Path) -> None:
    engine = engine_for(tiny_model, max_rows=9)
    plain, _ = generate(engine, PROMPTS * 3, [GREEDY] * 12, [PLAIN] * 12)
    for name in range(12):
        engine.open(str(name), 4)
        drafting = [Drafting(), lookahead(2, 3, 2), Drafting(strategy="jacobi", window=9)][name % 3]
        engine.start(
            Turn(
                session=str(name),
                tokens=(PROMPTS * 3)[name],
                sampling=GREEDY,
                max_tokens=60,
                end_ids=[],
                drafting=drafting,
            )
        )
    texts: dict[str, list[int]] = {str(name): [] for name in range(12)}
    while engine.has_work:
        work = engine.plan()
        rows = sum(share.rows + (0 if draft is None else len(draft) - 1) for share, draft in work)
        assert rows <= 9
        for output in engine.settle(work, engine.run(work)):
            assert isinstance(output, Output)
            texts[output.session] += output.tokens
    assert list(texts.values()) == plain


def test_a_prompt_that_takes_all_rows_harms_no_window(tiny_model: Path) -> None:
    """Steps in which a session has no draft, behind one in which its window was in flight."""
    engine = engine_for(tiny_model, max_rows=40)
    long = random.Random(2).choices(range(3, 259), k=197)
    draftings = [lookahead(5, 4, 5), Drafting(strategy="jacobi", window=8), Drafting()]
    plain = [generate(engine, [prompt], [GREEDY], [PLAIN])[0][0] for prompt in (*PROMPTS[1:], long)]
    for name, (prompt, drafting) in enumerate(zip(PROMPTS[1:], draftings, strict=True)):
        engine.open(str(name), 4)
        engine.start(
            Turn(session=str(name), tokens=prompt, sampling=GREEDY, max_tokens=60, end_ids=[], drafting=drafting)
        )
    engine.open("3", 4)
    texts: list[list[int]] = [[], [], [], []]
    for step in itertools.count():
        if step == 8:
            engine.start(Turn(session="3", tokens=long, sampling=GREEDY, max_tokens=60, end_ids=[], drafting=PLAIN))
        if not engine.has_work:
            break
        for output in engine.step():
            assert isinstance(output, Output), output
            texts[int(output.session)] += output.tokens
    assert texts == plain


def test_windows_take_turns_where_rows_are_short(tiny_model: Path) -> None:
    engine = engine_for(tiny_model, max_rows=30)
    for name in "ab":
        engine.open(name, 4)
        engine.start(
            Turn(session=name, tokens=PHRASE, sampling=GREEDY, max_tokens=80, end_ids=[], drafting=lookahead(5, 4, 5))
        )
    large = {"a": 0, "b": 0}
    while len(engine.running) == 2:
        work = engine.plan()
        for share, draft in work:
            large[share.session] += draft is not None and len(draft) > 10
        engine.settle(work, engine.run(work))
    assert min(large.values()) > 0.4 * sum(large.values()) > 10


def test_a_draft_whose_keys_are_no_numbers_costs_a_step_and_no_text(tiny_model: Path) -> None:
    """A weight of zero does not hide them: such a step is made again without drafts."""
    engine = engine_for(tiny_model, max_rows=64)
    engine.costs = CHEAP
    (text,), _ = generate(engine, PROMPTS[2:3], [GREEDY], [PLAIN])
    bad = next(token for token in range(3, 259) if token not in text and token not in PROMPTS[2])
    embeddings: Any = engine._model._model
    embeddings.model.embed_tokens.weight.data = embeddings.model.embed_tokens.weight.data.clone()  # tied to the head
    embeddings.model.embed_tokens.weight.data[bad] = torch.nan
    assert generate(engine, PROMPTS[2:3], [GREEDY], [PLAIN])[0] == [text]
    for prediction in ([*text[:5], bad, bad, *text[5:]], [*text[:9], bad]):
        assert generate(engine, PROMPTS[2:3], [GREEDY], [Drafting()], prediction=prediction)[0] == [text]
    assert generate(engine, PROMPTS[:3], [GREEDY] * 3, [Drafting()] * 3, prediction=[*text[:5], bad])[0][2] == text


def test_end_tokens_that_cannot_be_are_refused(tiny_model: Path) -> None:
    engine = engine_for(tiny_model)
    engine.open("s", 4)
    turn = Turn(session="s", tokens=[5], sampling=GREEDY, max_tokens=3, end_ids=[259])
    with pytest.raises(ValueError, match="between 0 and 258"):
        engine.start(turn)
    with pytest.raises(ValueError, match="some token must not be an end token"):
        engine.start(structs.replace(turn, end_ids=list(range(259)), min_tokens=1))
    engine.start(structs.replace(turn, end_ids=list(range(259))))
    assert len(engine.step()) == 1


def test_a_session_drafts_no_more_rows_than_masks_have_bits(tiny_model: Path) -> None:
    """Also where a step takes many more, as on a GPU."""
    engine = engine_for(tiny_model, max_rows=1000, exact="fast", capacity=400)
    engine.costs = CHEAP
    (text,), _ = generate(engine, PROMPTS[:1], [GREEDY], [PLAIN], max_tokens=300)
    for prediction in (text, []):
        assert generate(engine, PROMPTS[:1], [GREEDY], [Drafting()], max_tokens=300, prediction=prediction)[0] == [text]
    engine.open("s", 4)
    engine.start(Turn(session="s", tokens=PROMPTS[0], sampling=GREEDY, max_tokens=300, end_ids=[], prediction=text))
    engine.step()
    most = 0
    while engine.has_work:
        work = engine.plan()
        most = max(most, *(len(draft) for _, draft in work if draft is not None))
        engine.settle(work, engine.run(work))
    assert most == 128
