"""The head of pooling models: hidden states to one vector per row, or to one per prompt token.

A row's vector is its last hidden state, its first, or the mean of all, which a row sums up over
its chunks. Then it passes the model's own head. A slot's token is POOLED, or why there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array

from jengine.config import PoolingConfig
from jengine.outputs import NOT_FINITE, POOLED
from jengine.runner.step.batch import Batch
from jengine.runner.step.hidden import Hidden
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


def pool_head(
    hidden: Hidden, state: StepState, program: Program
) -> tuple[StepState, dict[str, Any]]:
    """A vector for each slot and, where the features ask for it, one for each prompt token."""
    pooling, batch = hidden.model.config.pooling, hidden.batch
    assert pooling is not None, "the features of another model"
    assert batch is not None, "a step without stages"
    found: dict[str, Any] = {}
    with jax.named_scope("pool"):
        vectors, state = row_vectors(hidden, batch, pooling, state, program)
        found["pooled"] = hidden.model.pooler(vectors)
        if program.features.pooling == "tokens":
            found["pooled_tokens"] = hidden.model.pooler.of_tokens(hidden.prompts)
    is_finite = jnp.all(jnp.isfinite(found["pooled"]), axis=-1)
    found["tokens"] = jnp.where(is_finite, jnp.int32(POOLED), jnp.int32(NOT_FINITE))
    return state, found


def row_vectors(
    hidden: Hidden, batch: Batch, pooling: PoolingConfig, state: StepState, program: Program
) -> tuple[Float32[Array, "slots hidden"], StepState]:
    """The vector of each slot's row, and the state with the sums of all rows."""
    if state.sums is None:
        return hidden.ends.astype(jnp.float32), state
    sums = with_chunks(state.sums, hidden.prompts, batch, pooling, program)
    vectors = sums.at[hidden.sampling.rows].get(mode="fill", fill_value=0)
    if pooling.sequence == "MEAN":
        count = jnp.maximum(hidden.sampling.positions, 1).astype(jnp.float32)[:, None]
        vectors = vectors / jnp.broadcast_to(count, vectors.shape)
    return vectors, state._replace(sums=sums)


def with_chunks(
    sums: Float32[Array, "rows hidden"],
    prompts: Float32[Array, "tokens hidden"],
    batch: Batch,
    pooling: PoolingConfig,
    program: Program,
) -> Float32[Array, "rows hidden"]:
    """The sums with the step's prompt tokens; a row whose first token runs begins at zero."""
    positions = batch.positions[program.bucket.decode_rows :]
    tile, rows = program.shapes.prefill_tile, batch.tile_rows
    counted = positions == 0 if pooling.sequence == "CLS" else positions >= 0
    taken = jnp.where(counted[:, None], prompts.astype(jnp.float32), 0.0)
    by_tile = taken.reshape(len(rows), tile, -1).sum(axis=1)
    begins = positions.reshape(len(rows), tile)[:, 0] == 0
    fresh = jnp.where(begins, rows, len(sums))  # past the end: dropped
    return sums.at[fresh].set(0.0, mode="drop").at[rows].add(by_tile, mode="drop")
