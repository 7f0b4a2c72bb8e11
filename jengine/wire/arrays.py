"""Numpy arrays as (dtype, shape, bytes) inside msgpack messages.

In: arrays. Out: extension values, and back to arrays whose size is validated. No pickle; numeric
dtypes only.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

ARRAY = 1  # the extension's code
NUMBERS = frozenset("biuf")  # dtype kinds: booleans, integers and floats
MOST_DIMENSIONS = 8


class ArrayFrame(msgspec.Struct, frozen=True, array_like=True):
    """An array as plain data."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes


def pack_array(value: Any) -> msgspec.msgpack.Ext:
    """An array as an extension value: the `enc_hook` of an encoder."""
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"a {type(value).__name__} in a message")
    frame = ArrayFrame(value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
    return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(frame))


def unpack_array(code: int, data: memoryview) -> np.ndarray:
    """The array in an extension value: the `ext_hook` of a decoder.

    Raises a msgspec.ValidationError if its parts do not fit each other.
    """
    if code != ARRAY:
        raise msgspec.ValidationError(f"extension {code}: expected {ARRAY}, an array")
    frame = msgspec.msgpack.decode(data, type=ArrayFrame)
    try:
        dtype = np.dtype(frame.dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise msgspec.ValidationError(f"an array of dtype {frame.dtype[:40]!r}") from error
    if dtype.kind not in NUMBERS:
        raise msgspec.ValidationError(f"an array of dtype {frame.dtype[:40]!r}: expected numbers")
    if len(frame.shape) > MOST_DIMENSIONS or any(size < 0 for size in frame.shape):
        raise msgspec.ValidationError(f"an array of shape {frame.shape[:MOST_DIMENSIONS]}")
    size = math.prod(frame.shape) * dtype.itemsize
    if size != len(frame.content):
        raise msgspec.ValidationError(
            f"an array {frame.dtype} of shape {frame.shape} takes {size} bytes; "
            f"found {len(frame.content)}"
        )
    return np.frombuffer(frame.content, dtype).reshape(frame.shape).copy()
