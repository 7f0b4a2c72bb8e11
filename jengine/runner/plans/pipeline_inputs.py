"""Joins the plans of a pipeline's stages into the packed input of one step.

In: the packed plan of each stage, in different buckets. Out: one bucket for all, and one buffer
with a row per stage. Pure numpy; must not know devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jengine.runner.plans.packing import PackedStep
from jengine.runner.step.step_input import StepInput, packed_parts
from jengine.runner.variants.buckets import Bucket, Ladders, StepShapes


def common_bucket(held: Sequence[PackedStep | None], ladders: Ladders) -> Bucket:
    """The smallest bucket that covers every stage's plan."""
    buckets = [packed.bucket for packed in held if packed is not None]
    if len(buckets) == 1:
        return buckets[0]
    return ladders.smallest_for(
        max(bucket.decode_rows for bucket in buckets),
        max(bucket.prefill_tokens for bucket in buckets),
        max(bucket.pages for bucket in buckets),
    )


def joined(held: Sequence[PackedStep | None], bucket: Bucket, shapes: StepShapes) -> np.ndarray:
    """The buffer of a step, [stages, packed + 1]. Every plan must have been `moved` to the bucket.

    Each row has the layer inputs of its stage's plan, the token ids of the entering plan, the
    sampling inputs of the leaving plan, and the stage's index: a device reads only its stage's row.
    """
    nothing = StepInput.empty(bucket, shapes)[0]
    buffers = [nothing if packed is None else packed.buffer for packed in held]
    embedded, read, sampled = packed_parts(bucket, shapes)
    rows = np.empty((len(held), len(nothing) + 1), np.int32)
    rows[:, -1] = np.arange(len(held))
    rows[:, embedded] = buffers[0][embedded]
    rows[:, sampled] = buffers[-1][sampled]
    for row, buffer in zip(rows, buffers, strict=True):
        row[read] = buffer[read]
    return rows


def moved(packed: PackedStep, bucket: Bucket, shapes: StepShapes) -> PackedStep:
    """Repack a plan for a larger bucket: prefill tokens shift past the added decode rows."""
    if packed.bucket is bucket or packed.bucket == bucket:
        return packed
    buffer, new = StepInput.empty(bucket, shapes)
    old = StepInput.over(packed.buffer, packed.bucket, shapes)
    rows, shift = packed.bucket.decode_rows, bucket.decode_rows - packed.bucket.decode_rows
    for theirs, ours in zip(old.tokens, new.tokens, strict=True):
        spread(theirs, ours, 0, 0)
    for name in ("decode_starts", "rows", "starts", "lengths"):
        spread(getattr(old.tiles, name), getattr(new.tiles, name), 0, 0)
    spread(old.tiles.taps, new.tiles.taps, rows, shift)
    spread(old.adapters.slots, new.adapters.slots, rows, shift)
    spread(old.heads.targets, new.heads.targets, 0, 0)
    spread(behind(old.heads.logit_index, rows, shift), new.heads.logit_index, rows, shift)
    for theirs, ours in zip(old.blocks.tables, new.blocks.tables, strict=True):
        spread(theirs, ours, rows, shift)
    for theirs, ours in zip(old.sampling, new.sampling, strict=True):
        spread(theirs, ours, rows, shift)
    slots = behind(packed.slots, rows, shift)
    return packed._replace(
        buffer=buffer, bucket=bucket, slots=slots, chunk_base=packed.chunk_base + shift
    )


def spread(old: Any, new: Any, rows: int, shift: int) -> None:
    """Copy the first `rows` entries in place and the rest shifted by `shift`. The gap stays
    padding; entries past the end of `new` are padding and are dropped."""
    columns = tuple(slice(size) for size in old.shape[1:])
    end = min(len(old), len(new) - shift)
    new[:rows][(slice(None), *columns)] = old[:rows]
    new[rows + shift : end + shift][(slice(None), *columns)] = old[rows:end]


def behind(indices: np.ndarray, rows: int, shift: int) -> np.ndarray:
    """Shift indices of entries at or after `rows` by `shift`."""
    return np.where(indices >= rows, indices + shift, indices).astype(indices.dtype)
