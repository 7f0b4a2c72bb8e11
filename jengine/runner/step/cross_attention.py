"""Cross attention in a step: attends to the encoder's keys and values, without a mask.

In: the array filled by encoder programs, and the positions of each row in it. Out: a reader for
model layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.models.context import CrossReader
from jengine.runner.step.beside import Beside, Sections
from jengine.runner.step.program import Program
from jengine.runner.step.step_input import StepInput
from jengine.runner.variants.buckets import Bucket, StepShapes

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

NOWHERE = -1e30  # score of masked positions


class CrossInput(NamedTuple):
    """Each row's positions in the encoder's array."""

    kept: Any  # f32[capacity, layers * (keys + values)] the encoder's array
    places: Any  # i32[rows, positions] rows of it that each engine row reads, -1: none

    def added(self, found: Beside, inputs: Sections, program: Program, model: Any) -> Beside:
        assert inputs is not None, "pipelines of models with cross attention are refused"
        config = model.config
        width = config.cross_width // config.cross_index(len(config.layers))
        cross = cross_reader(self, inputs, program.bucket, program.shapes, width)
        return found._replace(cross=cross)


def cross_reader(
    given: CrossInput, inputs: StepInput, bucket: Bucket, shapes: StepShapes, width: int
) -> CrossReader:
    """Returns the attention function of this step. Keys are gathered once per decode row and per
    prefill tile; `width`: of one layer's keys and values."""
    decodes, tile = bucket.decode_rows, shapes.prefill_tile
    tables = [
        given.places.at[rows].get(mode="fill", fill_value=-1)
        for rows in (inputs.tokens.decode_rows, inputs.tiles.rows)
    ]

    def attend(layer: int, queries: Array, scale: float) -> Array:
        heads, dim = queries.shape[-2:]
        kept = given.kept.reshape(len(given.kept), -1, width)
        parts = (queries[:decodes, None], queries[decodes:].reshape(-1, tile, heads, dim))
        found = [
            attended(part, of_rows(kept, table, layer, dim), table, scale).reshape(-1, heads, dim)
            for part, table in zip(parts, tables, strict=True)
            if part.size
        ]
        return jnp.concatenate(found)

    return attend


def of_rows(
    kept: Float[Array, "capacity layers width"], table: Int[Array, "rows positions"], layer: int,
    dim: int,
) -> Float32[Array, "rows positions two kv_heads dim"]:  # fmt: skip
    """Gather one layer's keys and values for each row."""
    found = kept.at[jnp.maximum(table, 0), layer].get(mode="clip").astype(jnp.float32)
    return found.reshape(*table.shape, 2, -1, dim)


def attended(
    queries: Float[Array, "rows tokens heads dim"],
    both: Float[Array, "rows positions two kv_heads dim"],
    table: Int[Array, "rows positions"],
    scale: float,
) -> Float[Array, "rows tokens heads dim"]:
    """Softmax attention of each row's queries to the positions in its table."""
    group = queries.shape[2] // both.shape[3]
    keys, values = (jnp.repeat(both[:, :, part], group, axis=2) for part in (0, 1))
    scores = jnp.einsum("rthd,rphd->rhtp", queries, keys) * scale
    exists = jnp.broadcast_to((table >= 0)[:, None, None, :], scores.shape)
    weights = jax.nn.softmax(jnp.where(exists, scores, NOWHERE), axis=-1)
    return jnp.einsum("rhtp,rphd->rthd", weights, values)
