"""Runs a Triton kernel in Triton's interpreter on numpy arrays, without torch and without a GPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

from pallas_kernels.launch.inline_assembly import run_assembly

TYPES = {
    "bool": tl.int1,
    "int8": tl.int8,
    "uint8": tl.uint8,
    "int32": tl.int32,
    "uint32": tl.uint32,
    "int64": tl.int64,
    "float16": tl.float16,
    "bfloat16": tl.bfloat16,
    "float32": tl.float32,
    "float8_e4m3fn": tl.float8e4nv,
}
# The interpreter keeps the program index in a global.
_one_at_a_time = threading.Lock()


class HostArray:
    """The part of torch.Tensor's interface that the interpreter calls, over a numpy array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype = TYPES[array.dtype.name]
        self.shape = array.shape

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def storage_offset(self) -> int:
        return 0

    # Storage, host copy and new view are all this array.
    def untyped_storage(self) -> HostArray:
        return self

    def cpu(self) -> HostArray:
        return self

    def new_empty(self, *_: Any, **__: Any) -> HostArray:
        return HostArray(self.array)

    def set_(self, storage: HostArray, *_: Any) -> None:
        self.array = storage.array

    def copy_(self, other: HostArray) -> None:
        """A no-op: the interpreter has already written through the pointer."""


def interpreting() -> bool:
    """Whether kernels defined from now on run in the interpreter."""
    return bool(triton.knobs.runtime.interpret)


def is_interpreted(kernel: Any) -> bool:
    """Whether this kernel was defined for the interpreter."""
    return isinstance(kernel, InterpretedFunction)


def interpret(
    kernel: Any,
    arrays: Sequence[Any],
    launch: Any,
    out: Sequence[Any],
    in_place: Sequence[int],
) -> list[np.ndarray]:
    """Run the kernel over its grid. Returns new arrays, then copies of those written in place."""
    given = [np.ascontiguousarray(array) for array in arrays]
    for index in in_place:
        given[index] = given[index].copy()
    new = [poison(shape.shape, shape.dtype) for shape in out]
    pointers = [HostArray(array) for array in (*given, *new)]
    with _one_at_a_time, np.errstate(all="ignore"):
        kernel[launch.grid](*pointers, **dict(launch.constants))
    return [*new, *(given[index] for index in in_place)]


def poison(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of NaN or minimal integers, for memory that a kernel must overwrite."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    worst = np.iinfo(dtype).min if dtype.kind in "iu" else math.nan
    return np.full(shape, worst, dtype)


def make_bfloat16_real(builder: Any) -> None:
    """Patch the interpreter's bfloat16 to behave as on a GPU.

    It keeps bfloat16 as bits: casts truncate instead of rounding, and `tl.dot` multiplies the bits
    (FP8's too). The patch rounds to nearest even, multiplies values, and runs inline assembly.
    """
    cast, dot = builder.cast_impl, builder.create_dot

    def rounding_cast(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            rounded = source.data.astype(ml_dtypes.bfloat16).view(np.uint16)
            return TensorHandle(rounded, tl.bfloat16)
        return cast(self, source, target)

    def dot_of_numbers(self: Any, a: Any, b: Any, *others: Any) -> Any:
        return dot(self, as_numbers(a), as_numbers(b), *others)

    builder.cast_impl, builder.create_dot = rounding_cast, dot_of_numbers
    builder.create_inline_asm = run_assembly


# Types that the interpreter keeps as bits.
KEPT_AS_BITS = {tl.bfloat16: ml_dtypes.bfloat16, tl.float8e4nv: ml_dtypes.float8_e4m3fn}


def as_numbers(handle: Any) -> Any:
    """Convert operands kept as bits (bfloat16, FP8) to float32; others are returned unchanged."""
    kind = KEPT_AS_BITS.get(handle.dtype.scalar)
    if kind is None:
        return handle
    return TensorHandle(handle.data.view(kind).astype(np.float32), tl.float32)


make_bfloat16_real(InterpreterBuilder)
