"""A checkpoint's parameter, readable in slices.

In: a parameter's pieces and their tensors. Out: requested slices, so that a process reads only its
devices' shards. Must not know devices.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jengine.errors import CheckpointError
from jengine.models.tensors.checkpoint import Piece
from jengine.weights.tile_copy import TASK_BYTES, Convert, Task, copy, run_tasks, task_regions

Region = Sequence[slice]
# JAX on CPUs adopts a NumPy array without a copy if it is aligned to this.
ALIGNMENT = 64


class ReadableTensor(Protocol):
    """A tensor in a file, stored or decoded."""

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> Path: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> int:
        """Bytes in the file."""
        ...

    def read(self) -> np.ndarray: ...


class TypedTensor(ReadableTensor, Protocol):
    """A tensor with a dtype named as in safetensors."""

    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class StoredParameter:
    """A parameter in checkpoint files; `threads` share the work of reading it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: tuple[tuple[Piece, ReadableTensor], ...]
    threads: Executor | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_covered(self) -> bool:
        """Whether tensors cover all of it; gaps are zero, such as missing key biases."""
        filled = sum(math.prod(piece.source_shape) for piece, _ in self.parts)
        return filled == self.size

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter in memory."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray:
        """Read a slice, and no more than that from the file."""
        wanted = ranges(region, self.shape)
        found = aligned([one.stop - one.start for one in wanted], self.dtype)
        if not self.is_covered:
            found.fill(0)
        threads = self.threads if found.nbytes > TASK_BYTES else None
        run_tasks(self._copies(found, wanted), threads)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[()], dtype)

    def elements(self, indices: np.ndarray) -> np.ndarray:
        """Read single elements by flat index."""
        found = np.zeros(len(indices), self.dtype)
        wanted = np.unravel_index(indices, self.shape)
        for piece, tensor in self.parts:
            place = piece.place(self.shape)
            inside = np.ones(len(indices), bool)
            for axis, one in zip(wanted, place, strict=True):
                inside &= (axis >= one.start) & (axis < one.stop)
            there = tuple(axis[inside] - one.start for axis, one in zip(wanted, place, strict=True))
            values = oriented(piece, tensor, place)[there]
            found[inside] = converted(values, self.dtype, tensor)
        return found

    def _copies(self, found: np.ndarray, wanted: Region) -> Iterator[Task]:
        """Copy tasks that fill `found`, the slice `wanted` of the parameter."""
        for piece, tensor in self.parts:
            place = piece.place(self.shape)
            shared = [overlap(one, other) for one, other in zip(wanted, place, strict=True)]
            if any(one.start >= one.stop for one in shared):
                continue
            # Opened by the first task and closed after the last one: a parameter of many experts
            # has more tensors than a process may open files.
            view = functools.cache(functools.partial(oriented, piece, tensor, place))
            for part in task_regions(shared, self.dtype.itemsize, input_axes(piece, place)):
                ours, theirs = moved(part, wanted), moved(part, place)
                convert = functools.partial(converted, dtype=self.dtype, tensor=tensor)
                yield functools.partial(copy_part, found[ours], view, theirs, convert)


def oriented(piece: Piece, tensor: ReadableTensor, place: Region) -> np.ndarray:
    """View of the tensor with the axes of the slice that it fills."""
    return piece.turned(tensor.read()).reshape([one.stop - one.start for one in place])


def input_axes(piece: Piece, place: Region) -> int:
    """Number of leading axes fused into a transposed tensor's last axis. Tasks do not split them,
    so that each reads a contiguous range of the file."""
    if not piece.transpose:
        return 0
    sizes = itertools.accumulate((one.stop - one.start for one in place), operator.mul)
    return 1 + next(axis for axis, size in enumerate(sizes) if size >= piece.source_shape[-1])


def copy_part(
    into: np.ndarray,
    view: Callable[[], np.ndarray],
    part: tuple[slice, ...],
    convert: Convert,
) -> None:
    copy(into, view()[part], convert)


def aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Uninitialised array, aligned so that JAX on CPUs adopts it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def ranges(index: Sequence[slice], shape: tuple[int, ...]) -> list[slice]:
    """Nonnegative start and stop of a region along each axis."""
    given = (*index, *[slice(None)] * (len(shape) - len(index)))
    return [slice(*one.indices(size)[:2]) for one, size in zip(given, shape, strict=True)]


def overlap(one: slice, other: slice) -> slice:
    """Intersection of two ranges; empty if disjoint."""
    return slice(max(one.start, other.start), min(one.stop, other.stop))


def moved(region: Region, origin: Region) -> tuple[slice, ...]:
    """A region relative to another's start."""
    return tuple(
        slice(one.start - base.start, one.stop - base.start)
        for one, base in zip(region, origin, strict=True)
    )


def converted(values: np.ndarray, dtype: np.dtype, tensor: ReadableTensor) -> np.ndarray:
    """Values converted to float16, checked for overflow; for other dtypes assignment converts."""
    if dtype != np.float16 or values.dtype == np.float16:
        return values
    # float16 has the smallest range of the readable dtypes.
    wide = np.asarray(values, np.float32)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    if np.any(np.isinf(narrow) & np.isfinite(wide)):
        raise CheckpointError(
            f"{tensor.file}: {tensor.name!r} holds values beyond float16; load it as bfloat16 or"
            " float32."
        )
    return narrow
