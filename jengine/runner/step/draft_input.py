"""Draft tokens to verify in a step: their section of the packed input, and selection on the device.

The decode rows of a request are adjacent: its last token, then its drafts. Unless the device
drafts, the host packs draft tokens for a window of positions; the device selects by the request's
length, which the host does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jengine.runner.step.section_fields import Field, Fields
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.sampling.acceptance import Drafted, drafted

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


class DraftInput(NamedTuple):
    """D decode rows and N windows of W draft tokens; all of length 0 in engines without drafts."""

    offsets: Any  # i32[D] 0: the row's last token, or padding; j: its j-th draft
    window: Any  # i32[D] the window that a draft is taken from
    firsts: Any  # i32[N] the position of a window's first draft
    tokens: Any  # i32[N, W] the drafts; -1: none
    count: Any  # i32[1] drafts per row for the next step; of length 0 without a device drafter


def draft_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of DraftInput. A row with drafts has at least two decode rows."""
    rows = bucket.decode_rows if shapes.has_drafts(bucket) else 0
    windows = rows // 2 if shapes.draft_window else 0
    return {
        "offsets": Field((rows,)),
        "window": Field((rows,)),
        "firsts": Field((windows,)),
        "tokens": Field((windows, shapes.draft_window), padding=-1),
        "count": Field((int(shapes.makes_drafts),)),
    }


class RunDrafts(NamedTuple):
    """Draft tokens of decode rows."""

    offsets: Array  # i32[D] as in DraftInput
    tokens: Array  # i32[D] the draft; -1: none, and the decode row is padding


def run_drafts(
    inputs: DraftInput,
    lengths: Int32[Array, " decodes"],
    next_drafts: Int32[Array, "decodes drafts"] | None,
    shapes: StepShapes,
) -> RunDrafts:
    """The drafts to verify: those that the device proposed in the row's last step, else those of
    the plan's window that come next at the request's length."""
    if next_drafts is None:
        return RunDrafts(inputs.offsets, planned_drafts(inputs, lengths, shapes))
    index = jnp.maximum(inputs.offsets - 1, 0)[:, None]
    own = jnp.take_along_axis(next_drafts, index, axis=1)[:, 0]
    return RunDrafts(inputs.offsets, jnp.where(inputs.offsets > 0, own, -1))


def planned_drafts(
    inputs: DraftInput, lengths: Int32[Array, " decodes"], shapes: StepShapes
) -> Int32[Array, " decodes"]:
    """The plan's draft tokens at the next positions; -1 where there is none."""
    place = lengths + inputs.offsets - inputs.firsts[inputs.window]
    inside = (inputs.offsets > 0) & (place >= 0)
    place = jnp.where(inside, place, shapes.draft_window)  # past the end: no draft
    next_drafts = jnp.asarray(inputs.tokens)
    return next_drafts.at[inputs.window, place].get(mode="fill", fill_value=-1)


def with_draft_tokens(own: Int32[Array, " decodes"], drafts: RunDrafts) -> Int32[Array, " decodes"]:
    """Tokens of the decode rows; `own`: those of rows without a draft."""
    return jnp.where(drafts.offsets > 0, jnp.maximum(drafts.tokens, 0), own)


def with_draft_positions(
    own: Int32[Array, " decodes"], drafts: RunDrafts
) -> Int32[Array, " decodes"]:
    """Positions of the decode rows, -1 for missing drafts."""
    missing = (drafts.offsets > 0) & (drafts.tokens < 0)
    return jnp.where(missing | (own < 0), -1, own + drafts.offsets)


def slot_drafts(drafts: RunDrafts, slots: int, most: int) -> Drafted:
    """Drafts by sampling slot. The first slots are those of the decode rows."""
    others = (0, slots - len(drafts.offsets))
    tokens = jnp.pad(drafts.tokens, others, constant_values=-1)
    return drafted(tokens, jnp.pad(drafts.offsets, others), most)
