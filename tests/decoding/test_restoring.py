"""Snapshots in the engine: used where they fit, and nothing else ever."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from decoding.engine import Engine
from decoding.turn import Drafting, Output
from tests.driver import generate, run
from tests.talk import engine_for, octets, text_of, turn_of


@pytest.fixture(scope="module")
def built(tiny_model: Path) -> Engine:
    return engine_for(tiny_model)


@pytest.fixture
def engine(built: Engine) -> Iterator[Engine]:
    """One for many tests, and no session in it when one begins."""
    yield built
    for session in list(built._sessions):
        built.close(session)


def test_a_snapshot_serves_where_the_cache_cannot_go_back_so_far(engine: Engine, tmp_path: Path) -> None:
    engine.open("s", 4)
    ids = text_of(60)
    ids += run(engine, {"s": turn_of("s", ids)})["s"]
    held = len(ids) - 1  # the last one is pending
    engine.snapshot("s").write(tmp_path / "s")
    ids += text_of(150, 1)
    run(engine, {"s": turn_of("s", ids[80:])})
    engine.fork("s", "finished", len(ids))
    engine.finish("finished", 85, tmp_path / "s")
    assert engine.describe("finished").cached == held
    engine.fork("s", "without", len(ids))
    assert engine.start(turn_of("without", [7]), 85) == 4  # its pinned block
    assert engine.start(turn_of("s", [7]), 85, tmp_path / "s") == held
    texts: dict[str, list[int]] = {"without": [], "s": []}
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output)
            texts[output.session] += output.tokens
    texts["finished"] = run(engine, {"finished": turn_of("finished", [7])})["finished"]
    assert texts["s"] == texts["without"] == texts["finished"]


FAULTS = {
    "cut off": "cut off",
    "damaged": "checksum",
    "other S": "other settings",
    "other text": "evicted tokens are needed",
    "other model": "other settings",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_snapshot_that_does_not_fit_is_not_used(
    engine: Engine, tiny_model: Path, tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    ids = text_of(90)
    engine.open("s", 4)
    ids += run(engine, {"s": turn_of("s", ids)})["s"]
    maker = engine_for(tiny_model, block=16) if fault == "other model" else engine
    maker.open("maker", 5 if fault == "other S" else 4, octets(ids))
    run(maker, {"maker": turn_of("maker", [7], 1)})
    maker.snapshot("maker").write(path)
    maker.close("maker")
    whole = bytearray(path.read_bytes())
    if fault == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif fault == "damaged":
        whole[len(whole) // 2] ^= 1
        path.write_bytes(whole)
    elif fault == "other text":
        ids[3] = 96 if ids[3] == 95 else 95
    ids = [*ids, 7]
    with caplog.at_level(logging.INFO):
        cached = engine.open("t", 4, octets(ids), path)
    assert cached == (0 if fault == "other text" else 4)  # the pinned block is known, whatever the snapshot is
    assert "is not used" in caplog.text
    assert FAULTS[fault] in caplog.text
    assert run(engine, {"t": turn_of("t", [8])})["t"] == generate(engine, [[*ids, 8]], 20)[0]


def test_a_snapshot_of_another_continuation_is_rolled_back_to_where_they_part(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = text_of(90)
    engine.open("s", 4)
    ids += run(engine, {"s": turn_of("s", ids)})["s"]
    engine.snapshot("s").write(tmp_path / "s")
    for name, other, common in (("longer", ids[:80], 80), ("other", [*ids[:85], 7, 8, 9], 85)):
        assert engine.open(name, 4, octets(other), tmp_path / "s") == common
        assert run(engine, {name: turn_of(name, [8])})[name] == generate(engine, [[*other, 8]], 20)[0]
    assert engine.open("no file", 4, octets(ids), tmp_path / "none") == 4  # its pinned block
    assert not caplog.text


def test_a_session_that_came_back_can_be_rolled_back_wherever_its_slab_had_moved(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Right behind a move to the front a roll-back makes room before the window: rows go where there were none yet."""
    engine = engine_for(tiny_model, capacity=64, max_rows=128)
    text = text_of(300)
    for length in range(228, 252):
        engine.open("s", 4, octets(text[:length]))
        drafting = Drafting(strategy="lookahead")  # so that it moves at all sorts of lengths
        run(engine, {"s": msgspec.structs.replace(turn_of("s", [7], 5), drafting=drafting)})
        engine.snapshot("s").write(tmp_path / "s")
        ids = engine._sessions["s"].ids.tolist()
        engine.close("s")
        for back in (6, 7, 8, 15):
            engine.open("t", 4, octets(ids), tmp_path / "s")
            engine.finish("t", len(ids) - back)
            got = run(engine, {"t": turn_of("t", [8, 9], 4)})["t"]
            assert got == generate(engine, [[*ids[:-back], 8, 9]], 4)[0], (length, back)
            engine.close("t")


def test_a_snapshot_is_written_by_another_thread_while_the_engine_goes_on(engine: Engine, tmp_path: Path) -> None:
    ids = text_of(90)
    engine.open("s", 4)
    engine.start(turn_of("s", ids, 60))
    while engine.describe("s").tokens < 100:
        engine.step()
    taken = engine.snapshot("s")
    writer = threading.Thread(target=taken.write, args=(tmp_path / "s",))
    writer.start()
    while engine.has_work:
        engine.step()
    writer.join()
    ids = engine._sessions["s"].ids.tolist()
    assert engine.open("t", 4, octets(ids), tmp_path / "s") == len(taken.ids) // 4
    texts = run(engine, {name: turn_of(name, [8]) for name in "st"})
    assert texts["s"] == texts["t"]


def test_a_new_process_takes_snapshots_over(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    """Another engine, built from the same folder and settings, has the same fingerprint; with other ones it has not."""
    other = engine_for(tiny_model)
    assert other.fingerprint == engine.fingerprint
    changes: list[dict[str, Any]] = [
        {"capacity": 56},
        {"block": 4},
        {"policy": "window"},
        {"dtype": "bfloat16"},
        {"exact": "fast"},
        {"max_rows": 41},
    ]
    marks = {engine_for(tiny_model, **change).fingerprint for change in changes}
    assert len(marks | {engine.fingerprint}) == 1 + len(changes)
    engine.open("s", 4)
    ids = text_of(90)
    ids += run(engine, {"s": turn_of("s", ids)})["s"]
    engine.snapshot("s").write(tmp_path / "s")
    assert other.open("s", 4, octets(ids), tmp_path / "s") == len(ids) - 1
    assert run(other, {"s": turn_of("s", [8])}) == run(engine, {"s": turn_of("s", [8])})


def test_other_weights_have_another_fingerprint(engine: Engine, tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert engine_for(tmp_path).fingerprint == engine.fingerprint
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert engine_for(tmp_path).fingerprint != engine.fingerprint
