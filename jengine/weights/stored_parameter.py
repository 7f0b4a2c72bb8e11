"""One of our parameters as it lies in a checkpoint, from which any part of it can be read alone.

In: the pieces of the parameter and the tensors they come from. Out: arrays of the parts asked for,
so that a process reads what its devices hold. Must not know devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jengine.errors import CheckpointError
from jengine.models.checkpoint import STRIPE, Piece
from jengine.weights.safetensors_file import StoredTensor

Region = Sequence[slice]
# Where JAX on the CPU uses a NumPy array's memory as it is, instead of copying it.
ALIGNMENT = 64


@dataclass(frozen=True)
class StoredParameter:
    """A parameter of this shape and type, in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: tuple[tuple[Piece, StoredTensor], ...]

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray:
        """A part of the parameter; only that much is read."""
        given = (*region, *[slice(None)] * (len(self.shape) - len(region)))
        wanted = [
            slice(*one.indices(size)[:2]) for one, size in zip(given, self.shape, strict=True)
        ]
        found = aligned([one.stop - one.start for one in wanted], self.dtype)
        for place, values, tensor in self._views():
            shared = [overlap(one, other) for one, other in zip(wanted, place, strict=True)]
            if all(one.start < one.stop for one in shared):
                ours, theirs = moved(shared, wanted), moved(shared, place)
                fill(found[ours], values[theirs], tensor)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[()], dtype)

    def elements(self, indices: np.ndarray) -> np.ndarray:
        """Single elements, by their places in the flattened parameter."""
        found = np.empty(len(indices), self.dtype)
        wanted = np.unravel_index(indices, self.shape)
        for place, values, tensor in self._views():
            inside = np.ones(len(indices), bool)
            for axis, one in zip(wanted, place, strict=True):
                inside &= (axis >= one.start) & (axis < one.stop)
            there = tuple(axis[inside] - one.start for axis, one in zip(wanted, place, strict=True))
            found[inside] = converted(values[there], self.dtype, tensor)
        return found

    def _views(self) -> Iterator[tuple[list[slice], np.ndarray, StoredTensor]]:
        """Each piece's place in the parameter, and a view of its tensor turned to lie there."""
        for piece, tensor in self.parts:
            place = piece.place(self.shape)
            sizes = [one.stop - one.start for one in place]
            yield place, piece.turned(tensor.read()).reshape(sizes), tensor


def aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array without values, whose memory JAX can take over."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def ranges(index: Sequence[slice], shape: tuple[int, ...]) -> list[slice]:
    """Where a part begins and ends along each axis."""
    given = (*index, *[slice(None)] * (len(shape) - len(index)))
    return [slice(*one.indices(size)[:2]) for one, size in zip(given, shape, strict=True)]


def overlap(one: slice, other: slice) -> slice:
    """What two ranges have in common; it ends before it begins if that is nothing."""
    return slice(max(one.start, other.start), min(one.stop, other.stop))


def moved(region: Region, origin: Region) -> tuple[slice, ...]:
    """A region as seen from where another one begins."""
    return tuple(
        slice(one.start - base.start, one.stop - base.start)
        for one, base in zip(region, origin, strict=True)
    )


def fill(into: np.ndarray, values: np.ndarray, tensor: StoredTensor) -> None:
    """Copy a few columns at a time: what is turned would leave the processor's cache otherwise."""
    if values.flags.c_contiguous or not values.ndim:
        into[...] = converted(values, into.dtype, tensor)
        return
    for start in range(0, into.shape[-1], STRIPE):
        stripe = slice(start, start + STRIPE)
        into[..., stripe] = converted(values[..., stripe], into.dtype, tensor)


def converted(values: np.ndarray, dtype: np.dtype, tensor: StoredTensor) -> np.ndarray:
    """The values in this type, or as they are where assigning them converts them as well."""
    if dtype != np.float16 or values.dtype == np.float16:
        return values
    # float16 is the only type here with a smaller range than the stored one.
    wide = np.asarray(values, np.float32)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    if np.any(np.isinf(narrow) & np.isfinite(wide)):
        raise CheckpointError(
            f"{tensor.file}: {tensor.name!r} holds values beyond float16; load it as bfloat16 or"
            " float32."
        )
    return narrow
