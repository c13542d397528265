"""A packed cache and the ids behind it, in a file that is read back whole or refused."""

import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import torch
from torch import Tensor

from cache.packed import Packed, Part

_MAGIC = b"SinkAhd1"  # its last character is the format's version
_PREFIX = struct.Struct("<8sI")  # magic, length of the header
_CHECKSUM = struct.Struct("<I")  # CRC-32 of all before it: 19 ms for 50 MB, where BLAKE2b takes 70
_ALIGNED = 64  # where tensors may begin
_MOST_HEADER = 2**20
_DTYPES = {str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**48)]


class SnapshotError(Exception):
    """A file that is no valid snapshot of what was asked for; the message says why."""


class _Part(msgspec.Struct, frozen=True):
    numbers: list[int]
    shapes: list[tuple[Count, Count, Count, Count, Count]]


class _Header(msgspec.Struct, frozen=True):
    fingerprint: str
    length: Count
    begin: Count
    dtype: str
    parts: list[_Part]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """It owns what it holds: another thread may write it while its session goes on.

    The file: magic, header length, header (JSON), ids, tensors, each of them filled up to 64 bytes; CRC-32.
    """

    fingerprint: str  # of all that the cache's numbers depend on
    ids: bytes  # int32, little endian: the tokens that are cached, from the text's first one on
    packed: Packed

    @property
    def bytes(self) -> int:
        """About the size of its file."""
        return len(self.ids) + self.packed.bytes

    def write(self, path: Path) -> None:
        """Replaces the file at once, mode 0600: after a crash it is the old one or this one. Raises OSError.

        A process that is killed leaves a file of another name behind, which begins with a dot and ends in ".tmp".
        """
        number, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(number, "wb", buffering=0) as file:
                checksum = 0
                for piece in self._pieces():
                    checksum = zlib.crc32(piece, checksum)
                    _write_all(file, piece)
                _write_all(file, memoryview(_CHECKSUM.pack(checksum)))
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _pieces(self) -> Iterator[memoryview]:
        packed = self.packed
        (dtype,) = {tensor.dtype for part in packed.parts for tensor in part.tensors}
        parts = [
            _Part(list(part.numbers), [tuple(tensor.shape) for tensor in part.tensors])  # type: ignore[misc]
            for part in packed.parts
        ]
        header = msgspec.json.encode(_Header(self.fingerprint, packed.length, packed.begin, str(dtype), parts))
        header += b" " * (-(_PREFIX.size + len(header)) % _ALIGNED)
        yield memoryview(_PREFIX.pack(_MAGIC, len(header)) + header)
        for piece in (memoryview(self.ids), *(_octets(t) for part in packed.parts for t in part.tensors)):
            yield piece
            yield memoryview(bytes(-len(piece) % _ALIGNED))

    @classmethod
    def read(cls, path: Path, fingerprint: str) -> "Snapshot":
        """Raises SnapshotError for whatever is wrong: no such file, another fingerprint, a byte that has changed."""
        try:
            number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block
            with os.fdopen(number, "rb", buffering=0) as file:
                return cls._read(file, fingerprint)
        except OSError as error:
            raise SnapshotError(f"cannot be read: {error}") from None
        except (msgspec.MsgspecError, RecursionError) as error:
            raise SnapshotError(f"its header is damaged: {error}") from None

    @classmethod
    def _read(cls, file: BinaryIO, fingerprint: str) -> "Snapshot":
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise SnapshotError("it is no file")
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size:
            raise SnapshotError("it is cut off")
        magic, count = _PREFIX.unpack(prefix)
        if magic != _MAGIC or count > _MOST_HEADER:
            raise SnapshotError("it is of another format")
        octets = file.read(count)
        header = msgspec.json.decode(octets, type=_Header)
        if header.fingerprint != fingerprint:
            raise SnapshotError("it was made with another model or other settings")
        if (dtype := _DTYPES.get(header.dtype)) is None:
            raise SnapshotError(f"its dtype is {header.dtype}")
        shapes = [shape for part in header.parts for shape in part.shapes]
        sizes = [4 * header.length, *(_volume(shape) * dtype.itemsize for shape in shapes)]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size + -size % _ALIGNED)
        if status.st_size != _PREFIX.size + count + starts[-1] + _CHECKSUM.size:
            raise SnapshotError("it is cut off, or too long")
        body = torch.empty(starts[-1] + _CHECKSUM.size, dtype=torch.uint8)
        view = body.numpy().data
        _read_all(file, view)
        checksum = zlib.crc32(view[: starts[-1]], zlib.crc32(octets, zlib.crc32(prefix)))
        if checksum != _CHECKSUM.unpack(view[starts[-1] :])[0]:
            raise SnapshotError("its checksum is wrong")
        tensors = (
            body[start : start + size].view(dtype).view(shape)
            for start, size, shape in zip(starts[1:], sizes[1:], shapes, strict=False)
        )
        parts = tuple(Part(tuple(part.numbers), tuple(next(tensors) for _ in part.shapes)) for part in header.parts)
        return cls(fingerprint, bytes(view[: sizes[0]]), Packed(header.length, header.begin, parts))


def _octets(tensor: Tensor) -> memoryview:
    """A tensor's memory."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _volume(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _write_all(file: BinaryIO, piece: memoryview) -> None:
    """A single write takes at most 2 GiB."""
    while piece:
        piece = piece[file.write(piece) :]


def _read_all(file: BinaryIO, view: memoryview) -> None:
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise SnapshotError("it is cut off")
        view = view[count:]
