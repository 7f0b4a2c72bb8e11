"""Parses GGUF headers: metadata and tensor locations, with every length checked.

In: a file. Out: metadata and tensors. Must not know models or block formats.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jengine.errors import CheckpointError, lfs_advice

MAGIC = b"GGUF"
MODEL = "model"  # general.type; others are adapters and multimodal projectors
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
MOST_NESTED = 2  # depth of nested arrays
# Metadata value types by number: struct format characters.
NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY = 8, 9
LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class PackedType:
    """A tensor type: blocks of `numbers` values in `size` bytes along a row."""

    name: str
    numbers: int
    size: int


# By number. Types without a block layout are known only to name them in errors.
TYPES = {
    0: PackedType("F32", 1, 4),
    1: PackedType("F16", 1, 2),
    2: PackedType("Q4_0", 32, 18),
    3: PackedType("Q4_1", 32, 20),
    6: PackedType("Q5_0", 32, 22),
    7: PackedType("Q5_1", 32, 24),
    8: PackedType("Q8_0", 32, 34),
    10: PackedType("Q2_K", 256, 84),
    11: PackedType("Q3_K", 256, 110),
    12: PackedType("Q4_K", 256, 144),
    13: PackedType("Q5_K", 256, 176),
    14: PackedType("Q6_K", 256, 210),
    20: PackedType("IQ4_NL", 32, 18),
    23: PackedType("IQ4_XS", 256, 136),
    30: PackedType("BF16", 1, 2),
    39: PackedType("MXFP4", 32, 17),
}
NOT_READ = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip


@dataclass(frozen=True)
class PackedTensor:
    """A tensor's type, shape and byte range."""

    file: Path
    name: str
    type: PackedType
    shape: tuple[int, ...]
    start: int
    size: int

    def bytes(self) -> np.ndarray:
        """Read-only memory-mapped view of its bytes. Raises CheckpointError."""
        if self.size == 0:
            return np.empty(0, np.uint8)
        try:
            return np.memmap(self.file, np.uint8, "r", self.start, (self.size,))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.file}: {self.name!r}: cannot be read: {error}") from error


class Texts(Sequence[str]):
    """A list of strings in the file, parsed on access."""

    def __init__(self, file: Path, start: int, count: int) -> None:
        self.file = file
        self.start = start
        self.size = count

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return self.read()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def read(self) -> list[str]:
        """Parse all strings."""
        with mapped(self.file) as memory:
            reader = _ValueReader(self.file, memory, self.start)
            return [reader.string() for _ in range(self.size)]


@dataclass(frozen=True)
class GgufHeader:
    """A file's metadata, and its tensors by name."""

    file: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, PackedTensor]


class NotArrived(Exception):
    """The header extends past the bytes downloaded so far."""


def read_header(file: Path, arrived: int | None = None) -> GgufHeader:
    """Parse and check a header. `arrived`: bytes downloaded so far, of a file preallocated to its
    full size. Raises CheckpointError or NotArrived."""
    with mapped(file) as memory:
        return _parse(file, _ValueReader(file, memory, arrived=arrived))


def has_header(file: Path, arrived: int) -> bool:
    """Whether the first `arrived` bytes hold the whole header. Raises CheckpointError."""
    try:
        read_header(file, arrived)
    except NotArrived:
        return False
    return True


@contextmanager
def mapped(file: Path) -> Iterator[mmap.mmap]:
    """Memory-map a file. Raises CheckpointError."""
    try:
        with file.open("rb") as stream:
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise CheckpointError(f"{file}: cannot be read: {error}{lfs_advice(file)}") from error
    with memory:
        yield memory


class _ValueReader:
    """Sequential reader of values."""

    def __init__(
        self, file: Path, memory: mmap.mmap, at: int = 0, arrived: int | None = None
    ) -> None:
        self.file = file
        self.memory = memory
        self.at = at
        self.size = len(memory)
        self.arrived = self.size if arrived is None else arrived

    def refuse(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: no GGUF file that can be read: {why}.")

    def take(self, size: int) -> bytes:
        self.skip(size)
        return self.memory[self.at - size : self.at]

    def number(self, form: str) -> Any:
        found = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        # The shortest decimal of a float32: 1e-6, not 9.99999997e-7.
        return float(str(np.float32(found))) if form == "<f" else found

    def string(self) -> str:
        try:
            return self.take(self.number("<Q")).decode()
        except UnicodeDecodeError as error:
            raise self.refuse(f"a name is not UTF-8 at byte {self.at}") from error

    def value(self, kind: int, depth: int = 0) -> Any:
        """Read a metadata value of this type."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == STRING:
            return self.string()
        if kind != ARRAY or depth == MOST_NESTED:
            raise self.refuse(f"metadata of type {kind}, expected 0 to 12")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in NUMBERS:
            data = self.take(count * struct.calcsize(NUMBERS[inner]))
            return np.frombuffer(data, NUMBERS[inner])
        if count > self.size - self.at:
            raise self.refuse(f"a list of {count} values is longer than the file")
        if inner != STRING:
            return [self.value(inner, depth + 1) for _ in range(count)]
        start = self.at
        for _ in range(count):
            self.skip(LENGTH.unpack(self.take(LENGTH.size))[0])
        return Texts(self.file, start, count)

    def skip(self, size: int) -> None:
        """Skip bytes. Raises CheckpointError at the end of the file, NotArrived at that of the
        download."""
        if size > self.size - self.at:
            raise self.refuse(f"{size} bytes are missing at its end")
        if size > self.arrived - self.at:
            raise NotArrived(self.file)
        self.at += size


def _parse(file: Path, reader: _ValueReader) -> GgufHeader:
    magic = reader.take(4)
    if magic != MAGIC:
        raise reader.refuse(f"it begins with {magic!r}, expected {MAGIC!r}")
    version = reader.number("<I")
    if version not in VERSIONS:
        raise reader.refuse(f"version {version}, expected {' or '.join(map(str, VERSIONS))}")
    tensors, values = reader.number("<Q"), reader.number("<Q")
    metadata = {}
    for _ in range(values):
        name = reader.string()
        if name in metadata:
            raise reader.refuse(f"it says {name!r} twice")
        metadata[name] = reader.value(reader.number("<I"))
    kind = metadata.get("general.type", MODEL)
    if kind != MODEL:
        raise reader.refuse(f"general.type is {kind!r}, expected {MODEL!r}")
    described = [_described(reader) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
        raise reader.refuse(f"general.alignment is {alignment!r}, expected a power of 2 from 8 on")
    start = -(-reader.at // alignment) * alignment
    found = {one[0]: _placed(reader, *one, start) for one in described}
    if len(found) < tensors:
        raise reader.refuse("two tensors have one name")
    _check_apart(reader, sorted(found.values(), key=lambda one: one.start))
    return GgufHeader(file, metadata, found)


def _check_apart(reader: _ValueReader, tensors: Sequence[PackedTensor]) -> None:
    """Raise CheckpointError if tensors overlap."""
    for one, after in itertools.pairwise(one for one in tensors if one.size):
        if one.start + one.size > after.start:
            raise reader.refuse(f"{one.name!r} and {after.name!r} share bytes")


def _described(reader: _ValueReader) -> tuple[str, tuple[int, ...], int, int]:
    """Read a tensor's name, shape, type and offset."""
    name, dimensions = reader.string(), reader.number("<I")
    if dimensions > MOST_DIMENSIONS:
        raise reader.refuse(f"{name!r} has {dimensions} dimensions, at most {MOST_DIMENSIONS}")
    shape = tuple(reader.number("<Q") for _ in range(dimensions))[::-1]
    return name, shape, reader.number("<I"), reader.number("<Q")


def _placed(
    reader: _ValueReader, name: str, shape: tuple[int, ...], kind: int, offset: int, start: int
) -> PackedTensor:
    if kind not in TYPES:
        known = ", ".join(one.name for one in TYPES.values())
        raise CheckpointError(
            f"{reader.file}: {name!r} is packed as {NOT_READ.get(kind, f'type {kind}')}, which is"
            f" not built. Read are {known}."
        )
    packed, count = TYPES[kind], math.prod(shape)
    if shape and shape[-1] % packed.numbers:
        raise reader.refuse(f"{name!r} has rows of {shape[-1]}, no blocks of {packed.numbers}")
    size = count // packed.numbers * packed.size
    if offset > len(reader.memory) or size > len(reader.memory) - start - offset:
        raise reader.refuse(f"{name!r} ends after the end of the file")
    return PackedTensor(reader.file, name, packed, shape, start + offset, size)
