"""Sessions that move between tiers and processes, against those that never do: the same tokens, and fewer forwarded."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from decoding.engine import Engine
from decoding.errors import NoPlaceError
from decoding.strategy import Limits
from decoding.turn import Output, Sampling
from tests import families
from tests.driver import GREEDY, generate, run
from tests.talk import PHRASE, engine_for, octets, text_of, turn_of

SAMPLED = Sampling(seed=5, temperature=0.8, top_p=0.9)


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {"llama": tiny_model}
    for family in ("qwen3, window 9", "mistral, window 9", "gpt_oss, window 9"):
        made[family] = tmp_path_factory.mktemp("family")
        families.build(families.FAMILIES[family].config).save_pretrained(made[family])
    return made


@pytest.fixture(scope="module")
def built(tiny_model: Path) -> Engine:
    return engine_for(tiny_model)


@pytest.fixture
def engine(built: Engine) -> Iterator[Engine]:
    """One for many tests, and no session in it when one begins."""
    yield built
    for session in list(built._sessions):
        built.close(session)


class Chat:
    """A session that is moved at random, and its ids, which a client would know."""

    def __init__(self, engine: Engine, folder: Path, draw: random.Random) -> None:
        self.engine, self.folder, self.draw = engine, folder, draw
        self.name, self.count = "moved 0", 0
        self.ids: list[int] = []
        self.snapshots: list[Path] = []
        engine.open(self.name, 6)

    def rename(self) -> str:
        self.count += 1
        self.name = f"moved {self.count}"
        return self.name

    def move(self) -> None:
        """To another tier, place or process."""
        engine, old = self.engine, self.name
        match self.draw.choice(["", "park", "fork", "fork parked", "snapshot", "snapshot parked", "old", "rebuild"]):
            case "park":
                engine.park(old)
                engine.resume(old)
            case "fork":
                assert engine.fork(old, self.rename(), len(self.ids)) >= len(self.ids) - 1
                engine.close(old)
            case "fork parked":
                engine.park(old)
                engine.fork(old, self.rename(), len(self.ids))
                engine.close(old)
            case "snapshot" | "snapshot parked" as kind:
                if "parked" in kind:
                    engine.park(old)
                self.save(old)
                self.reopen(old, self.snapshots[-1])
            case "old" if self.snapshots:
                self.reopen(old, self.draw.choice(self.snapshots))
            case "rebuild":
                self.reopen(old, None)

    def save(self, name: str) -> None:
        path = self.folder / f"{len(self.snapshots)}"
        self.engine.snapshot(name).write(path)
        self.snapshots.append(path)

    def reopen(self, old: str, snapshot: Path | None) -> None:
        self.engine.close(old)
        self.engine.open(self.rename(), 6, octets(self.ids), snapshot)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sinks": ("llama", {}),
    "sinks, bfloat16": ("llama", {"dtype": "bfloat16"}),
    "sinks, fast": ("llama", {"exact": "fast"}),
    "window": ("llama", {"policy": "window"}),
    "recompute": ("llama", {"policy": "recompute"}),
    "dense": ("llama", {"policy": "dense", "capacity": 400}),
    "some own windows": ("qwen3, window 9", {"dtype": "bfloat16"}),
    "own windows alone": ("mistral, window 9", {}),
    "sink logits": ("gpt_oss, window 9", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_chat_that_is_moved_at_random_says_what_one_says_that_never_is(
    case: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Greedy and sampled, with drafts, with turns rolled back a little or further than can be undone."""
    family, options = CASES[case]
    engine = engine_for(folders[family], **options)
    if engine.facts.exact == "fast" and options.get("dtype") == "bfloat16":
        pytest.skip("no kernels here that keep the bits of bfloat16")
    for seed in range(2):
        draw = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        chat = Chat(engine, folder, draw)
        engine.open("still", 6)
        for index in range(8):
            chat.move()
            keep = None
            if chat.ids and draw.random() < 0.4:
                keep = draw.randint(max(0, len(chat.ids) - draw.choice([3, 30, 300])), len(chat.ids))
                del chat.ids[keep:]
            tokens = text_of(draw.choice([1, 5, 30, 70] if options.get("policy") != "dense" else [1, 9]), index)
            sampling = draw.choice([GREEDY, Sampling(seed=index, temperature=0.8)])
            snapshot = draw.choice([None, *chat.snapshots])
            texts: dict[str, list[int]] = {"still": [], chat.name: []}
            for name in texts:
                cached = engine.start(turn_of(name, tokens, 25, sampling), keep, snapshot)
                assert cached < len(chat.ids) + len(tokens)
            while engine.has_work:
                for output in engine.step():
                    assert isinstance(output, Output)
                    texts[output.session] += output.tokens
            assert texts[chat.name] == texts["still"]
            chat.ids += tokens + texts["still"]
        last = turn_of("rebuilt", [7, 8])
        engine.open("rebuilt", 6, octets(chat.ids))
        turns = {name: turn_of(name, last.tokens) for name in ("rebuilt", "still", chat.name)}
        assert len({tuple(text) for text in run(engine, turns).values()}) == 1
        for name in turns:
            engine.close(name)


def test_a_parked_session_holds_no_place(tiny_model: Path) -> None:
    one = engine_for(tiny_model).facts.session_bytes
    engine = engine_for(tiny_model, memory_bytes=2 * one)
    for name in "ab":
        engine.open(name, 4)
        run(engine, {name: turn_of(name, text_of(30))})
    with pytest.raises(NoPlaceError):
        engine.fork("a", "c", 5)
    assert engine.park("a") == engine.describe("a").bytes < one
    assert (engine.num_placed, engine.num_parked) == (1, 1)
    engine.open("c", 4)
    with pytest.raises(NoPlaceError, match="all 2 places"):
        engine.resume("a")
    engine.close("b")
    engine.resume("a")
    engine.park("a")
    engine.close("a")
    assert (engine.num_placed, engine.num_parked) == (1, 0)


def test_what_cannot_be_moved_is_refused_and_stays(engine: Engine) -> None:
    engine.open("s", 4)
    engine.start(turn_of("s", text_of(90), 30))
    engine.step()
    with pytest.raises(ValueError, match="runs a turn"):
        engine.park("s")
    with pytest.raises(ValueError, match="not parked"):
        engine.resume("s")
    with pytest.raises(ValueError, match="open already"):
        engine.fork("s", "s", 5)
    with pytest.raises(ValueError, match="cannot keep -1"):
        engine.fork("s", "t", -1)
    with pytest.raises(KeyError):
        engine.fork("none", "t", 5)
    for ids in (b"abc", octets([-1]), octets([259])):
        with pytest.raises(ValueError, match=r"bytes|between"):
            engine.open("t", 4, ids)
    while engine.has_work:
        engine.step()
    engine.park("s")
    with pytest.raises(ValueError, match="parked already"):
        engine.park("s")
    with pytest.raises(ValueError, match="is parked"):
        engine.start(turn_of("s", [5]), keep=3)
    with pytest.raises(ValueError, match="open already"):
        engine.open("s", 4)
    assert engine.describe("s").tokens == 120
    engine.resume("s")
    for keep, tokens in ((-1, [5]), (50, []), (50, [259])):
        with pytest.raises(ValueError, match=r"keep|at least|between"):
            engine.start(turn_of("s", tokens), keep=keep)
    assert engine.describe("s").tokens == 120


@pytest.mark.parametrize("back", [0, 1, 20, 55, 100])
def test_finish_of_a_parked_session_rolls_back(engine: Engine, back: int) -> None:
    engine.open("s", 4)
    ids = text_of(100)
    ids += run(engine, {"s": turn_of("s", ids)})["s"]
    engine.park("s")
    keep = len(ids) - back
    assert engine.finish("s", keep) == keep
    cached = {0: keep - 1, 100: 0}.get(back, keep)  # the last token is pending; the ring ends before the first ones
    assert engine.describe("s").cached == cached
    assert engine.snapshot("s").ids == octets(ids[:cached])
    engine.resume("s")
    assert run(engine, {"s": turn_of("s", [7])})["s"] == generate(engine, [[*ids[:keep], 7]], 20)[0]


def test_a_fork_of_a_running_session_disturbs_neither(engine: Engine) -> None:
    prompt = text_of(60)
    want = generate(engine, [prompt], 60)[0]
    for steps in (1, 2, 4, 9):
        engine.open("source", 4)
        engine.start(turn_of("source", prompt, 60))
        text: list[int] = []
        for _ in range(steps):
            for output in engine.step():
                assert isinstance(output, Output)
                text += output.tokens
        held = len(prompt) + len(text)
        cached = engine.fork("source", "fork", held)
        assert cached == (4 + 40 if steps == 1 else held - 1)  # its pinned block was known
        turns = {"fork": turn_of("fork", [9, 8, 7], 40, SAMPLED)}
        engine.start(turns["fork"])
        texts: dict[str, list[int]] = {"source": [*text], "fork": []}
        while engine.has_work:
            for output in engine.step():
                assert isinstance(output, Output)
                texts[output.session] += output.tokens
        assert texts["source"] == want
        assert texts["fork"] == generate(engine, [[*prompt, *text, 9, 8, 7]], 40, sampling=SAMPLED)[0]
        engine.close("source")
        engine.close("fork")


def test_a_source_is_the_same_after_its_forks_went_other_ways(engine: Engine) -> None:
    prompt = text_of(80)
    engine.open("source", 4)
    engine.open("twin", 4)
    texts = run(engine, {name: turn_of(name, prompt) for name in ("source", "twin")})
    ids = prompt + texts["source"]
    for keep in (10, 60, 95, len(ids)):
        engine.fork("source", "fork", keep)
        got = run(engine, {"fork": turn_of("fork", [4, 5, 6], 70)})["fork"]
        assert got == generate(engine, [[*ids[:keep], 4, 5, 6]], 70)[0]
        engine.close("fork")
    texts = run(engine, {name: turn_of(name, [9]) for name in ("source", "twin")})
    assert texts["source"] == texts["twin"]


@pytest.mark.parametrize("keep", [0, 40, 60, 119])
def test_start_rolls_back_as_finish_does(engine: Engine, keep: int) -> None:
    ids = text_of(100)
    for name in ("start", "finish"):
        engine.open(name, 4)
        text = run(engine, {name: turn_of(name, ids)})[name]
    ids += text
    engine.finish("finish", keep)
    engine.start(turn_of("start", [7]), keep=keep)
    assert engine._sessions["start"].ids.tolist() == [*ids[:keep], 7]
    while engine.has_work:
        engine.step()
    run(engine, {"finish": turn_of("finish", [7])})
    assert engine._sessions["start"].ids == engine._sessions["finish"].ids


def test_a_session_is_described(engine: Engine) -> None:
    engine.open("s", 4)
    got = engine.describe("s")
    assert (got.tokens, got.live, got.evicted, got.pinned, got.capacity, got.parked) == (0, 0, 0, 0, 48, False)
    run(engine, {"s": turn_of("s", text_of(80), 20)})
    got = engine.describe("s")
    assert (got.tokens, got.cached, got.live, got.evicted, got.pinned) == (100, 99, 44, 56, 4)
    engine.park("s")
    parked = engine.describe("s")
    assert parked.parked
    assert parked.bytes < got.bytes
    assert (parked.tokens, parked.cached, parked.live) == (100, 99, 44)


def test_a_long_text_is_indexed_from_its_end(engine: Engine) -> None:
    """A restore takes a bounded time, and the latest text is there to draft from."""
    ids = text_of(30_000)
    engine.open("s", 4, octets(ids))
    speculator = engine._sessions["s"].speculator
    speculator.begin(turn_of("s", [5]), engine.facts.drafting)
    suffixes = speculator._suffixes
    assert suffixes is not None
    suffixes.extend(len(ids))
    assert (suffixes._first, suffixes._stop) == (30_000 - 8192, 29_999)
    assert dict(suffixes.propose(PHRASE[:6]))[PHRASE[6]]
    engine.fork("s", "f", 500)
    speculator = engine._sessions["f"].speculator
    speculator.begin(turn_of("f", [5]), engine.facts.drafting)
    speculator.draft(Limits(8, 8, 0.0))
    assert speculator._suffixes is not None
    assert (speculator._suffixes._first, speculator._suffixes._stop) == (0, 499)


def test_memory_does_not_grow_as_sessions_come_and_go(tiny_model: Path, tmp_path: Path) -> None:
    """A session takes 1.7 MB here, so that 200 of them would be seen."""
    engine = engine_for(tiny_model, capacity=1024, block=64, memory_bytes=2**24)
    rest: list[int] = []
    for cycle in range(220):
        engine.open("s", 4, octets(text_of(30)), tmp_path / "s" if cycle % 2 else None)
        run(engine, {"s": turn_of("s", text_of(20), 2)})
        engine.park("s")
        engine.resume("s")
        engine.fork("s", "t", 20)
        engine.park("t")
        engine.snapshot("t").write(tmp_path / "s")
        engine.close("s")
        engine.close("t")
        if cycle >= 20:
            rest.append(psutil.Process().memory_info().rss)
    assert (engine.num_placed, engine.num_parked) == (0, 0)
    assert max(rest[-20:]) - max(rest[:20]) < 30 * 2**20
