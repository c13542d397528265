"""Snapshots come back whole or not at all."""

import os
import random
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
import torch

from cache.attention import Scores
from cache.layout import Layer, Layout
from cache.packed import Packed, Part
from cache.policy import POLICIES
from cache.rope import Rope
from cache.rule import Rule
from cache.session_cache import SessionCache
from cache.snapshot import Snapshot, SnapshotError

FINGERPRINT = "model, settings: \u00e4\U0001f600"
ROPE = Rope(10000.0 ** -(torch.arange(4, dtype=torch.float64) / 4))
RULE = Rule(4, 24, 5)


def cache_of(length: int, dtype: torch.dtype = torch.bfloat16) -> SessionCache:
    layout = Layout((Layer(ROPE), Layer(ROPE, window=9)), 2, 8, dtype, torch.device("cpu"), exact=True)
    cache = POLICIES["sinks"].new_cache(layout, RULE, max_rows=24)
    generator = torch.Generator().manual_seed(0)
    for _ in range(length):
        cache.begin(1, 1)
        for layer in range(2):
            rows = torch.randn(1, 2, 2, 8, generator=generator).to(dtype)
            cache.attend(layer, rows[:, 0], rows, Scores(0.25))
        cache.commit([0])
    return cache


def snapshot_of(length: int, dtype: torch.dtype = torch.bfloat16) -> Snapshot:
    return Snapshot(FINGERPRINT, array("i", range(length)).tobytes(), cache_of(length, dtype).pack())


def assert_equal(got: Snapshot, want: Snapshot) -> None:
    assert (got.fingerprint, got.ids) == (want.fingerprint, want.ids)
    assert (got.packed.length, got.packed.begin) == (want.packed.length, want.packed.begin)
    for mine, theirs in zip(got.packed.parts, want.packed.parts, strict=True):
        assert mine.numbers == theirs.numbers
        for one, other in zip(mine.tensors, theirs.tensors, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [0, 1, 24, 90])
def test_what_was_written_is_read(tmp_path: Path, length: int, dtype: torch.dtype) -> None:
    path = tmp_path / "snapshot"
    want = snapshot_of(length, dtype)
    want.write(path)
    assert_equal(Snapshot.read(path, FINGERPRINT), want)
    assert path.stat().st_mode & 0o777 == 0o600
    assert want.bytes <= path.stat().st_size <= want.bytes + 2048
    assert [entry.name for entry in tmp_path.iterdir()] == ["snapshot"]


def test_the_newer_one_replaces_the_older(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(b"anything")
    path.chmod(0o644)
    for length in (50, 10):
        snapshot_of(length).write(path)
        assert_equal(Snapshot.read(path, FINGERPRINT), snapshot_of(length))
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """In the prefix, the header, the ids, each tensor, and the checksum; and a file that is too long."""
    path = tmp_path / "snapshot"
    snapshot_of(40).write(path)
    whole = path.read_bytes()
    lengths = {*range(700), *random.Random(0).choices(range(len(whole)), k=100)}
    for length in lengths | set(range(len(whole) - 70, len(whole))):
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotError):
            Snapshot.read(path, FINGERPRINT)
    for more in (b"\0", bytes(64), whole):
        path.write_bytes(whole + more)
        with pytest.raises(SnapshotError):
            Snapshot.read(path, FINGERPRINT)


def test_every_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    snapshot_of(40).write(path)
    whole = path.read_bytes()
    draw = random.Random(0)
    places = [*range(600), *draw.choices(range(len(whole)), k=200), *range(len(whole) - 5, len(whole))]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= draw.randint(1, 255)
        path.write_bytes(changed)
        with pytest.raises(SnapshotError):
            Snapshot.read(path, FINGERPRINT)


def test_pages_that_never_reached_the_disk_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    snapshot_of(90).write(path)
    whole = path.read_bytes()
    for first in range(0, len(whole), 4096):
        lost = whole[:first] + bytes(len(whole[first : first + 4096])) + whole[first + 4096 :]
        path.write_bytes(lost)
        with pytest.raises(SnapshotError):
            Snapshot.read(path, FINGERPRINT)


def test_garbage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    draw = random.Random(0)
    magic = b"SinkAhd1"
    nested = b"[" * 100_000
    garbage = [b"", magic, draw.randbytes(5000), magic + draw.randbytes(5000), magic + bytes(5000)]
    garbage += [magic + len(text).to_bytes(4, "little") + text for text in (b"{}", b"null", nested, b'{"a":' + nested)]
    for text in garbage:
        path.write_bytes(text)
        with pytest.raises(SnapshotError):
            Snapshot.read(path, FINGERPRINT)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "none", tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(SnapshotError):
            Snapshot.read(path, FINGERPRINT)


def test_another_fingerprint_is_refused(tmp_path: Path) -> None:
    snapshot_of(40).write(tmp_path / "snapshot")
    for other in ("", FINGERPRINT + " ", FINGERPRINT.upper()):
        with pytest.raises(SnapshotError, match="another model or other settings"):
            Snapshot.read(tmp_path / "snapshot", other)


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "snapshot"
    snapshot_of(40).write(path)

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        snapshot_of(41).write(path)
    assert_equal(Snapshot.read(path, FINGERPRINT), snapshot_of(40))
    assert [entry.name for entry in tmp_path.iterdir()] == ["snapshot"]


def test_killed_before_the_rename_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    snapshot_of(40).write(path)
    code = f"""
import os, signal
from pathlib import Path
from cache.snapshot import Snapshot
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
old = Snapshot.read(Path({str(path)!r}), {FINGERPRINT!r})
Snapshot(old.fingerprint, old.ids[:0], old.packed).write(Path({str(path)!r}))
"""
    killed = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert_equal(Snapshot.read(path, FINGERPRINT), snapshot_of(40))
    (left,) = [entry.name for entry in tmp_path.iterdir() if entry != path]
    assert left.startswith(".")
    assert left.endswith(".tmp")


def test_a_cache_goes_on_from_a_file(tmp_path: Path) -> None:
    cache, path = cache_of(90), tmp_path / "snapshot"
    Snapshot(FINGERPRINT, bytes(4 * 90), cache.pack()).write(path)
    fresh = cache_of(0)
    fresh.unpack(Snapshot.read(path, FINGERPRINT).packed)
    assert_equal(Snapshot("", b"", fresh.pack()), Snapshot("", b"", cache.pack()))


def test_numbers_that_cannot_be_are_not_unpacked() -> None:
    """A file with the right checksum that was written by something else."""
    packed = cache_of(90).pack()
    sinks, window = packed.parts
    for numbers in ((-10_000, 70, 70), (10_000, 70, 70), (0, 70, 65), (0, -5, 70), (0, 70), (0, 70, 70, 1)):
        with pytest.raises(ValueError, match=r"."):
            cache_of(0).unpack(Packed(90, 0, (Part(numbers, sinks.tensors), window)))
    with pytest.raises(ValueError, match=r"."):
        cache_of(0).unpack(Packed(90, 0, (sinks,)))
