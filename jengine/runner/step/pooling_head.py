"""Pooling models: hidden states to one vector per row, or one per token.

A row's vector is its last hidden state, its first, or the mean of all, whose sum stays on the
device between chunks (`config/pooling.py`). A head program computes it and returns the token
POOLED, which ends the request; the vector's post-processing (normalisation, fewer dimensions,
softmax) is numpy (`engine/pooled.py`).

Encoders, whose attention is bidirectional, use the same steps, plans and programs: their cache
group keeps nothing (`kvcache/encoder_group.py`), prompts run whole, and their keys and values go to
temporary blocks that the prefill kernels read, each query at the position of the last key that it
sees (`runner/step/encoder_attention.py`). Token ids encode BERT's token types: id + type *
vocabulary size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array

from jengine.config import PoolingConfig
from jengine.outputs import NOT_FINITE, POOLED, StepOutput
from jengine.runner.step.batch import StepBatch
from jengine.runner.step.hidden import SlotInput, chunk_rows
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.program import Program
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.step.state import StepState
from jengine.sampling import SamplingInput

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32


def row_vectors(
    ends: Float32[Array, "slots hidden"],
    slots: SamplingInput,
    sums: Float32[Array, "rows hidden"] | None,
    pooling: PoolingConfig,
) -> Float32[Array, "slots hidden"]:
    """The vector of each slot's row: its hidden state in `ends` or, with `sums`, its sum or
    mean."""
    if sums is None:
        return ends.astype(jnp.float32)
    vectors = sums.at[slots.rows].get(mode="fill", fill_value=0)
    if pooling.sequence == "MEAN":
        count = jnp.maximum(slots.positions, 1).astype(jnp.float32)[:, None]
        vectors = vectors / jnp.broadcast_to(count, vectors.shape)
    return vectors


def with_chunks(
    sums: Float32[Array, "rows hidden"],
    prompts: Float32[Array, "tokens hidden"],
    batch: StepBatch,
    pooling: PoolingConfig,
    program: Program,
) -> Float32[Array, "rows hidden"]:
    """Add the step's prompt tokens to the sums of their rows; a row's first token resets its
    sum."""
    positions = batch.positions[program.bucket.decode_rows :]
    tile, rows = program.shapes.prefill_tile, batch.tile_rows
    counted = positions == 0 if pooling.sequence == "CLS" else positions >= 0
    taken = jnp.where(counted[:, None], prompts.astype(jnp.float32), 0.0)
    by_tile = taken.reshape(len(rows), tile, -1).sum(axis=1)
    begins = positions.reshape(len(rows), tile)[:, 0] == 0
    fresh = jnp.where(begins, rows, len(sums))  # past the end: dropped
    return sums.at[fresh].set(0.0, mode="drop").at[rows].add(by_tile, mode="drop")


def pool(
    leaves: Leaves, state: StepState, slots: SlotInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Apply the model's pooling head to the vector of each slot's row. A slot's token is POOLED, or
    NOT_FINITE for a vector that is not finite."""
    model, _ = program.head(leaves)
    vectors = row_vectors(slots.ends, slots.sampling(program), state.sums, model.config.pooling)
    pooled = model.pooler(vectors)
    is_finite = jnp.all(jnp.isfinite(pooled), axis=-1)
    tokens = jnp.where(is_finite, jnp.int32(POOLED), jnp.int32(NOT_FINITE))
    return state, StepOutput(tokens=tokens, pooled=pooled)


def pool_tokens(
    leaves: Leaves, state: StepState, given: PromptChunk, *, program: Program
) -> tuple[StepState, Array]:
    """Per-token outputs of the pooling head for a chunk."""
    model, _ = program.head(leaves)
    return state, model.pooler.of_tokens(chunk_rows(state, given))
