"""The step: one XLA program per (bucket, features). State in, state out; no globals.

embed -> layers -> heads (sample, score) -> new state. Python branches only on static values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import Array

from jengine.models.context import StepContext
from jengine.outputs import StepOutput
from jengine.runner.step.batch import batch_of, row_guesses, row_lengths, with_new_blocks
from jengine.runner.step.draft_input import (
    RunDrafts,
    run_drafts,
    slot_drafts,
    with_draft_tokens,
)
from jengine.runner.step.guessing import Guesser, with_guesses
from jengine.runner.step.heads import run_heads
from jengine.runner.step.hidden import Hidden, Ran
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.paged import paged_attention
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput, TokenInput, tile_of_token
from jengine.runner.step.taps import StepTaps
from jengine.sampling import SamplingInput

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


def step(
    leaves: Leaves, state: StepState, packed: Array, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Run the packed plan."""
    inputs = StepInput.over(packed, program.bucket, program.shapes)
    model, guess = program.models(leaves)
    return run(model, inputs, extended(state, inputs), program, guess)


def extended(state: StepState, inputs: StepInput) -> StepState:
    """The state with the plan's new blocks in its block tables."""
    assert state.tables is not None, "in a pipeline tables are packed"
    return state._replace(tables=with_new_blocks(state.tables, inputs.blocks.new))


def run(
    model: Any,
    inputs: StepInput,
    state: StepState,
    program: Program,
    guess: Guesser | None = None,
) -> tuple[StepState, StepOutput]:
    """Run the step of these inputs."""
    bucket, shapes = program.bucket, program.shapes
    drafts = run_drafts(
        inputs.drafts, row_lengths(inputs, state), row_guesses(inputs, state), bucket, shapes
    )
    tokens = input_tokens(inputs.tokens, state, drafts)
    batch = batch_of(inputs, state, bucket, shapes, drafts)
    attention = paged_attention(batch, bucket, shapes, program.placement)
    positions = jnp.maximum(batch.positions, 0)
    rows = tile_of_token(bucket, shapes)
    taps = StepTaps(program.features.taps, inputs.tiles.taps[rows], positions)
    tap = taps if taps.sets else None
    context = StepContext(positions, rows, attention, state.caches, tap, batch.positions)
    hidden = model(tokens, context)
    state = state._replace(caches=context.caches)
    ends = inputs.heads.logit_index
    sampling = with_positions(inputs.sampling, batch.positions[ends])
    prompts = hidden[bucket.decode_rows :]
    guesses = slot_drafts(drafts, len(ends), shapes.most_drafts)
    leaving = Hidden(model, hidden[ends], prompts, inputs.heads, sampling, guesses)
    state, output = run_heads(leaving, state, program)
    ran = Ran(tokens, hidden, batch, rows, attention)
    count = inputs.drafts.count
    state = with_guesses(state, output.tokens, leaving, ran, guess, count, program)
    return state, output._replace(captured=taps.captured)


def input_tokens(
    inputs: TokenInput, state: StepState, drafts: RunDrafts | None = None
) -> Int32[Array, " tokens"]:
    """The tokens that a step runs: decode rows, then prefill tokens."""
    # Decode tokens never leave the device: each row's last sample is its next input.
    own_tokens = state.last_token.at[inputs.decode_rows].get(mode="clip")
    decode_tokens = jnp.where(inputs.decode_tokens >= 0, inputs.decode_tokens, own_tokens)
    return jnp.concatenate([with_draft_tokens(decode_tokens, drafts), inputs.prefill_tokens])


def with_positions(inputs: SamplingInput, ends: Int32[Array, " slots"]) -> SamplingInput:
    """The sampler's input with the positions that the host does not know: one after each slot's
    last token, whose position is `ends` i32[S]."""
    return inputs._replace(positions=jnp.where(inputs.positions >= 0, inputs.positions, ends + 1))
