"""The safetensors format: checked headers, memory-mapped tensors, and a writer.

In: one file. Out: its tensors by name. Every offset, shape and size in a header is checked against
the file. Must not know models.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from jengine.errors import CheckpointError, lfs_advice

Declared = tuple[str, np.dtype, tuple[int, ...]]  # name, type, shape
LONGEST_HEADER = 100_000_000  # the limit of the reference implementation
MOST_DIMENSIONS = 64  # numpy's limit
# Dtypes of plain weights, and those of quantized weights and scales too.
READABLE = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
TYPES = {
    **READABLE,
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
# Bits per element of every dtype in the format: sizes are checked for unreadable ones too.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's type, shape and byte range in a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self) -> np.ndarray:
        """Read-only memory-mapped view of the tensor. Raises CheckpointError."""
        dtype = TYPES[self.dtype]
        if self.size == 0:
            return np.empty(self.shape, dtype)
        try:
            return np.memmap(self.file, dtype, "r", self.start, self.shape)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.file}: {self.name!r}: cannot be read: {error}") from error


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Tensors by name, checked to cover the file exactly. Raises CheckpointError."""
    try:
        with file.open("rb") as stream:
            file_size = os.fstat(stream.fileno()).st_size
            header_size = _header_size(file, stream.read(8), file_size)
            text = stream.read(header_size)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    entries = _parse_header(file, text)
    start = 8 + header_size
    tensors = {name: _stored(file, name, entry, start) for name, entry in entries.items()}
    _check_cover(file, tensors, start, file_size)
    return tensors


def write_file(file: Path, declared: Sequence[Declared], arrays: Iterable[np.ndarray]) -> None:
    """Write arrays one at a time to a temporary file, then rename it."""
    header = _encode_header(declared)
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(struct.pack("<Q", len(header)) + header)
            for (name, dtype, shape), array in zip(declared, arrays, strict=True):
                if array.dtype != dtype or array.shape != shape:
                    raise ValueError(f"{name!r} is {array.dtype} {array.shape}, not as declared")
                # Written as bytes: bfloat16 has no buffer format.
                stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _encode_header(declared: Sequence[Declared]) -> bytes:
    names = {dtype: name for name, dtype in TYPES.items()}
    # transformers 4 refuses files without this metadata.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in declared:
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": names[dtype], "shape": shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _header_size(file: Path, first: bytes, file_size: int) -> int:
    if len(first) < 8:
        raise CheckpointError(f"{file}: {file_size} bytes are too few for a safetensors file.")
    (size,) = struct.unpack("<Q", first)
    if not 2 <= size <= min(LONGEST_HEADER, file_size - 8):
        raise CheckpointError(
            f"{file}: the header says it is {size} bytes long, the file has {file_size} bytes. The"
            f" file is damaged or not safetensors; copy it again.{lfs_advice(file)}"
        )
    return size


def _parse_header(file: Path, text: bytes) -> dict[str, object]:
    def without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise CheckpointError(f"{file}: the header holds {key!r} twice.")
            found[key] = value
        return found

    try:
        header = json.loads(text.decode(), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: the header is not a JSON object.")
    header.pop("__metadata__", None)
    return header


def _stored(file: Path, name: str, entry: object, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{file}: {name!r}: expected dtype, shape and data_offsets, given {str(entry)[:120]!r}."
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise CheckpointError(
            f"{file}: {name!r}: unknown type {str(dtype)[:40]!r}, expected one of"
            f" {', '.join(_BITS)}."
        )
    if not _sizes(shape):
        raise CheckpointError(f"{file}: {name!r}: shape {str(shape)[:120]} is not a list of sizes.")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{file}: {name!r}: offsets {str(offsets)[:120]} are not a range.")
    begin, end = offsets
    # No overflow: a shape of huge dimensions cannot wrap around to a size that matches.
    if math.prod(shape) * _BITS[dtype] != (end - begin) * 8:
        raise CheckpointError(
            f"{file}: {name!r}: {dtype} {str(shape)[:120]} does not take the {end - begin} bytes"
            " that its offsets give."
        )
    return StoredTensor(file, name, dtype, tuple(shape), data_start + begin, end - begin)


def _sizes(value: object) -> bool:
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return False
    return all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_cover(
    file: Path, tensors: Mapping[str, StoredTensor], data_start: int, file_size: int
) -> None:
    """Raise CheckpointError unless tensors cover the data section without gap or overlap."""
    reached = data_start
    for tensor in sorted(tensors.values(), key=lambda one: (one.start, one.size)):
        if tensor.start != reached:
            problem = "overlaps the tensor before it" if tensor.start < reached else "leaves a gap"
            raise CheckpointError(f"{file}: {tensor.name!r} {problem} at byte {tensor.start}.")
        reached += tensor.size
    if reached != file_size:
        cause = "cut short" if file_size < reached else "followed by bytes of no tensor"
        raise CheckpointError(
            f"{file}: the tensors end at byte {reached}, the file at {file_size}: it is {cause}."
        )
