"""StepInput: everything one step reads from the host, laid out in one packed int32 buffer.

The same layout gives numpy views to fill on the host and slices of the traced buffer on the device,
so a step costs one transfer, and an empty input is also the warm-up call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jengine.runner.buckets import Bucket, StepShapes
from jengine.sampling import SamplingInput

# Ending ids of a row that a burst looks for. With more of them it only ends later than it could.
ENDINGS = 8
FLOAT_FIELDS = {"temperature", "top_p", "min_p", "repetition", "presence", "frequency"}


class StepInput(NamedTuple):
    """D decode rows, T prefill tokens in tiles of one row each, S sampling slots.

    Query tiles are the D decode rows, then the prefill tiles.
    """

    decode_rows: Any  # i32[D] engine row; max_rows for padding
    decode_tokens: Any  # i32[D] a token the host knows; -1: what the row sampled last
    prefill_tokens: Any  # i32[T]
    positions: Any  # i32[D + T]; -1 for padding
    tables: Any  # a group: i32[tiles, pages] block ids
    table_starts: Any  # a group: i32[tiles] position of the table's first token
    taps: Any  # i32[tiles] id of the tap set of the tile's row; 0: none
    repeats: Any  # i32[1] how often a burst runs at most; [0] where a step is none
    endings: Any  # i32[S, ENDINGS] tokens that end a slot's row, and -1; [0, ENDINGS] likewise
    logit_index: Any  # i32[S] which of the D + T tokens a slot samples after
    targets: Any  # i32[T] the token after each prompt token, for prompt log-probabilities
    sampling: SamplingInput  # [S] each

    @classmethod
    def empty(cls, bucket: Bucket, shapes: StepShapes) -> tuple[np.ndarray, StepInput]:
        """A buffer in which everything is padding, and views of it."""
        buffer = np.zeros(packed_size(bucket, shapes), np.int32)
        views = cls.over(buffer, bucket, shapes)
        views.decode_rows[...] = shapes.max_rows
        views.decode_tokens[...] = -1
        views.positions[...] = -1
        views.endings[...] = -1
        views.sampling.rows[...] = shapes.max_rows
        return buffer, views

    @classmethod
    def over(cls, buffer: Any, bucket: Bucket, shapes: StepShapes) -> StepInput:
        """Views of a packed buffer: numpy views of a numpy one, traced slices of a traced one."""
        view = numpy_view if isinstance(buffer, np.ndarray) else device_view
        return _lay_out(Cursor(buffer, view), bucket, shapes)


def tile_of_token(bucket: Bucket, shapes: StepShapes) -> Array:
    """i32 [D + T]: the query tile that each token belongs to."""
    decodes = jnp.arange(bucket.decode_rows, dtype=jnp.int32)
    tiles = jnp.arange(shapes.num_tiles(bucket), dtype=jnp.int32) + bucket.decode_rows
    return jnp.concatenate([decodes, jnp.repeat(tiles, shapes.prefill_tile)])


class Cursor:
    """Walks over the packed buffer and hands out consecutive parts of it."""

    def __init__(self, buffer: Any, view: Callable[[Any, tuple[int, ...], str], Any]) -> None:
        self.buffer = buffer
        self.view = view
        self.offset = 0

    def take(self, *shape: int, kind: str = "int32") -> Any:
        """The next part, with this shape and type."""
        begin, self.offset = self.offset, self.offset + math.prod(shape)
        if self.buffer is None:
            return None
        return self.view(self.buffer[begin : self.offset], shape, kind)


def numpy_view(part: np.ndarray, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """A writable view on the host."""
    return part.view(kind).reshape(shape)


def device_view(part: Array, shape: tuple[int, ...], kind: str) -> Array:
    """The same on the device."""
    part = part.reshape(shape)
    return part if kind == "int32" else lax.bitcast_convert_type(part, jnp.dtype(kind))


def packed_size(bucket: Bucket, shapes: StepShapes) -> int:
    """Length of the packed buffer, from the same walk that lays it out."""
    cursor = Cursor(None, numpy_view)
    _lay_out(cursor, bucket, shapes)
    return cursor.offset


def packed_parts(bucket: Bucket, shapes: StepShapes) -> tuple[slice, slice, slice]:
    """The packed buffer's parts: what is embedded, what layers read, what is sampled."""
    embedded = 2 * bucket.decode_rows + bucket.prefill_tokens
    size = packed_size(bucket, shapes)
    cursor = Cursor(None, numpy_view)
    _lay_out_sampling(cursor, bucket, shapes)
    sampled = size - cursor.offset
    return slice(embedded), slice(embedded, sampled), slice(sampled, size)


def _lay_out(cursor: Cursor, bucket: Bucket, shapes: StepShapes) -> StepInput:
    tiles = bucket.decode_rows + shapes.num_tiles(bucket)
    return StepInput(
        decode_rows=cursor.take(bucket.decode_rows),
        decode_tokens=cursor.take(bucket.decode_rows),
        prefill_tokens=cursor.take(bucket.prefill_tokens),
        positions=cursor.take(bucket.num_tokens),
        tables=tuple(
            cursor.take(tiles, shapes.group_pages(bucket, group)) for group in shapes.groups
        ),
        table_starts=tuple(cursor.take(tiles) for _ in shapes.groups),
        taps=cursor.take(tiles),
        repeats=cursor.take(1 if bucket.is_multi_step else 0),
        endings=cursor.take(shapes.num_slots(bucket) if bucket.is_multi_step else 0, ENDINGS),
        **_lay_out_sampling(cursor, bucket, shapes),
    )


def _lay_out_sampling(cursor: Cursor, bucket: Bucket, shapes: StepShapes) -> dict[str, Any]:
    slots = shapes.num_slots(bucket)
    return {
        "logit_index": cursor.take(slots),
        "targets": cursor.take(
            bucket.decode_rows if shapes.one_segment else bucket.prefill_tokens
        ),
        "sampling": SamplingInput(**{name: _sampling_field(cursor, name, slots)
                                     for name in SamplingInput._fields}),
    }  # fmt: skip


def _sampling_field(cursor: Cursor, name: str, slots: int) -> Any:
    if name == "seed":
        return cursor.take(slots, 2, kind="uint32")
    return cursor.take(slots, kind="float32" if name in FLOAT_FIELDS else "int32")
