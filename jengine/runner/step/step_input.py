"""StepInput: everything one step reads from the host, laid out in one packed int32 buffer.

Each section's layout gives numpy views to fill on the host and slices of the traced buffer on the
device, so a step needs one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jengine.runner.step.draft_input import DraftInput, draft_fields
from jengine.runner.step.section_fields import Field, Fields
from jengine.runner.variants.buckets import ENDINGS, Bucket, StepShapes
from jengine.sampling import SamplingInput, sampling_layout

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


class TokenInput(NamedTuple):
    """D decode rows and T prefill tokens."""

    decode_rows: Any  # i32[D] engine row; max_rows for padding
    decode_tokens: Any  # i32[D] a token the host knows; -1: the row's last sampled token
    prefill_tokens: Any  # i32[T]


def token_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of TokenInput."""
    return {
        "decode_rows": Field((bucket.decode_rows,), padding=shapes.max_rows),
        "decode_tokens": Field((bucket.decode_rows,), padding=-1),
        "prefill_tokens": Field((bucket.prefill_tokens,)),
    }


class TileInput(NamedTuple):
    """Positions of tokens in their sequences. Query tiles are the D decode rows, then the P prefill
    tiles, each with tokens of one row."""

    decode_starts: Any  # i32[D] a position the host knows; -1: the row's length, or padding
    rows: Any  # i32[P] engine row; max_rows for padding
    starts: Any  # i32[P] position of the tile's first token
    lengths: Any  # i32[P] tokens of the tile that are not padding
    taps: Any  # i32[D + P] id of the tap set of the tile's row; 0: none
    # i32[R + 1] the first tile of each run of joined tiles, and P; empty where none are joined
    runs: Any


def tile_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of TileInput."""
    prefill = shapes.num_tiles(bucket)
    return {
        "decode_starts": Field((bucket.decode_rows,), padding=-1),
        "rows": Field((prefill,), padding=shapes.max_rows),
        "starts": Field((prefill,)),
        "lengths": Field((prefill,)),
        "taps": Field((bucket.decode_rows + prefill,)),
        "runs": runs_field(bucket, shapes),
    }


def runs_field(bucket: Bucket, shapes: StepShapes) -> Field:
    """Runs of padding that cover every tile, so that attention returns zeros."""
    runs = shapes.num_runs(bucket)
    if not runs:
        return Field((0,))
    firsts = np.arange(runs + 1, dtype=np.int32) * shapes.joined_tiles
    return Field((runs + 1,), padding=np.minimum(firsts, shapes.num_tiles(bucket)))


class BlockInput(NamedTuple):
    """New entries of block tables; in a pipeline, the tables themselves."""

    new: Any  # i32[N, 4] (group, row, index, block); max_rows in padding
    tables: Any  # per group: i32[tiles, pages]; empty where tables are on the device


def block_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of BlockInput."""
    tiles = bucket.decode_rows + shapes.num_tiles(bucket)
    groups = shapes.groups if shapes.packed_tables else ()
    return {
        "new": Field((shapes.num_new_blocks(bucket), 4), padding=shapes.max_rows),
        "tables": [Field((tiles, shapes.group_pages(bucket, group))) for group in groups],
    }


class MultiStepInput(NamedTuple):
    """For multi-step decode; of length 0 in other steps."""

    repeats: Any  # i32[1] maximum runs in this call
    endings: Any  # i32[S, ENDINGS] stop ids of each slot's row, padded with -1


def multi_step_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of MultiStepInput."""
    slots = shapes.num_slots(bucket) if bucket.is_multi_step else 0
    return {
        "repeats": Field((int(bucket.is_multi_step),)),
        "endings": Field((slots, ENDINGS), padding=-1),
    }


class AdapterInput(NamedTuple):
    """LoRA slot of each query tile: D decode rows, then P prefill tiles."""

    slots: Any  # i32[D + P] from 1 on; 0: none. Of length 0 in engines without LoRA


def adapter_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of AdapterInput."""
    tiles = bucket.decode_rows + shapes.num_tiles(bucket) if shapes.adapter_slots else 0
    return {"slots": Field((tiles,))}


class HeadInput(NamedTuple):
    """Which hidden states the heads read."""

    logit_index: Any  # i32[S] index, among D + T tokens, of the token that a slot samples after
    targets: Any  # i32[T] the token after each prompt token, for prompt log-probabilities


def head_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of HeadInput."""
    return {
        "logit_index": Field((shapes.num_slots(bucket),)),
        "targets": Field((shapes.prompt_tokens(bucket),)),
    }


def sampling_fields(bucket: Bucket, shapes: StepShapes) -> Fields:
    """The layout of SamplingInput."""
    layout = sampling_layout(shapes.num_slots(bucket), shapes.max_rows)
    return {name: Field(*field) for name, field in layout.items()}


class StepInput(NamedTuple):
    """Views of the sections of a step's packed input buffer, in their order there."""

    tokens: TokenInput
    tiles: TileInput
    blocks: BlockInput
    adapters: AdapterInput
    multi_step: MultiStepInput
    drafts: DraftInput
    heads: HeadInput
    sampling: SamplingInput

    @classmethod
    def empty(cls, bucket: Bucket, shapes: StepShapes) -> tuple[np.ndarray, StepInput]:
        """A buffer of padding, and views of it."""
        layout = layout_of(bucket, shapes)
        buffer = layout.padding.copy()
        return buffer, layout.views(buffer, numpy_view)

    @classmethod
    def over(cls, buffer: Any, bucket: Bucket, shapes: StepShapes) -> StepInput:
        """Views of a packed buffer: numpy views of a numpy one, traced slices of a traced one."""
        view = numpy_view if isinstance(buffer, np.ndarray) else device_view
        return layout_of(bucket, shapes).views(buffer, view)


SECTIONS: dict[str, tuple[Callable[..., Any], Callable[[Bucket, StepShapes], Fields]]] = {
    "tokens": (TokenInput, token_fields),
    "tiles": (TileInput, tile_fields),
    "blocks": (BlockInput, block_fields),
    "adapters": (AdapterInput, adapter_fields),
    "multi_step": (MultiStepInput, multi_step_fields),
    "drafts": (DraftInput, draft_fields),
    "heads": (HeadInput, head_fields),
    "sampling": (SamplingInput, sampling_fields),
}

Part = tuple[slice, Field]
View = Callable[[Any, Field], Any]


@dataclass(frozen=True)
class Layout:
    """Offsets of all sections' fields in a bucket's buffer."""

    sections: dict[str, slice]
    parts: dict[str, dict[str, Part | tuple[Part, ...]]]
    padding: np.ndarray  # a buffer of padding

    def views(self, buffer: Any, view: View) -> StepInput:
        """Every field as a view of the buffer."""

        def viewed(part: Part | tuple[Part, ...]) -> Any:
            if part and isinstance(part[0], slice):
                return view(buffer[part[0]], part[1])  # pyrefly: ignore[bad-argument-type]
            return tuple(map(viewed, part))  # pyrefly: ignore[bad-argument-type]

        return StepInput(*(
            kind(**{name: viewed(part) for name, part in self.parts[section].items()})
            for section, (kind, _) in SECTIONS.items()
        ))  # fmt: skip


@lru_cache(maxsize=256)
def layout_of(bucket: Bucket, shapes: StepShapes) -> Layout:
    """The layout of this bucket's buffer, computed once."""
    offset = 0
    sections: dict[str, slice] = {}
    parts: dict[str, dict[str, Any]] = {}
    paddings: list[tuple[slice, int | np.ndarray]] = []

    def placed(field: Field | list[Field]) -> Part | tuple[Part, ...]:
        nonlocal offset
        if isinstance(field, list):
            return tuple(map(placed, field))  # pyrefly: ignore[bad-return]
        begin, offset = offset, offset + math.prod(field.shape)
        if np.any(field.padding):
            paddings.append((slice(begin, offset), field.padding))
        return slice(begin, offset), field

    for section, (_, fields) in SECTIONS.items():
        begin = offset
        parts[section] = {name: placed(field) for name, field in fields(bucket, shapes).items()}
        sections[section] = slice(begin, offset)
    padding = np.zeros(offset, np.int32)
    for part, value in paddings:
        padding[part] = value
    return Layout(sections, parts, padding)


def numpy_view(part: np.ndarray, field: Field) -> np.ndarray:
    """A writable view of a part of the numpy buffer."""
    if field.dtype != "int32":
        part = part.view(field.dtype)
    return part if len(field.shape) == 1 else part.reshape(field.shape)


def device_view(part: Array, field: Field) -> Array:
    """A field's part of the packed buffer inside jit: reshaped, its bits read as the field's
    dtype."""
    part = part.reshape(field.shape)
    if field.dtype == "int32":
        return part
    return lax.bitcast_convert_type(part, jnp.dtype(field.dtype))


def packed_size(bucket: Bucket, shapes: StepShapes) -> int:
    """Length of the packed buffer."""
    return len(layout_of(bucket, shapes).padding)


def packed_parts(bucket: Bucket, shapes: StepShapes) -> tuple[slice, slice, slice]:
    """Three parts of a pipeline's buffer: for the embedding in the first stage, for the layers of
    every stage, and for sampling after the last stage."""
    layout = layout_of(bucket, shapes)
    embedded = layout.sections["tokens"].stop
    read = layout.sections["adapters"].stop
    return slice(0, embedded), slice(embedded, read), slice(read, len(layout.padding))


def sampling_section(bucket: Bucket, shapes: StepShapes) -> slice:
    """Where the sampler's section is in the packed buffer."""
    return layout_of(bucket, shapes).sections["sampling"]


def section_size(slots: int, shapes: StepShapes) -> int:
    """Size of the sampler's section for this number of slots."""
    return sum(math.prod(shape) for shape, _, _ in sampling_layout(slots, shapes.max_rows).values())


def sampling_views(section: Array, slots: int, shapes: StepShapes) -> SamplingInput:
    """The fields of a traced sampling section with this many slots."""
    found: dict[str, Array] = {}
    offset = 0
    for name, field in sampling_layout(slots, shapes.max_rows).items():
        one = Field(*field)
        size = math.prod(one.shape)
        found[name] = device_view(section[offset : offset + size], one)
        offset += size
    return SamplingInput(**found)


def tile_of_token(bucket: Bucket, shapes: StepShapes) -> Int32[Array, " tokens"]:
    """The query tile that each token belongs to."""
    decodes = jnp.arange(bucket.decode_rows, dtype=jnp.int32)
    tiles = jnp.arange(shapes.num_tiles(bucket), dtype=jnp.int32) + bucket.decode_rows
    return jnp.concatenate([decodes, jnp.repeat(tiles, shapes.prefill_tile)])
