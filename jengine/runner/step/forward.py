"""The forward of a step: runs the model on a packed plan, and outputs what head programs read.

State in, state out, no globals; Python branches only on static values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jengine.models.context import StepContext
from jengine.runner.step.batch import (
    StepBatch,
    batch_of,
    row_drafts,
    row_lengths,
    with_new_blocks,
)
from jengine.runner.step.beside import StepGiven
from jengine.runner.step.context_parallel import ContextShards
from jengine.runner.step.draft_input import (
    RunDrafts,
    run_drafts,
    slot_drafts,
    with_draft_tokens,
)
from jengine.runner.step.hidden import Forwarded, Ran, SlotInput, with_prompts
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.paged import paged_attention
from jengine.runner.step.pooling_head import with_chunks
from jengine.runner.step.program import Models, Program
from jengine.runner.step.recurrent import HeldStates
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import (
    StepInput,
    TokenInput,
    sampling_section,
    tile_of_token,
)
from jengine.runner.step.step_taps import StepTaps
from jengine.runner.variants.buckets import Bucket, ChosenExperts, StepShapes
from jengine.sampling import SamplingInput
from jengine.sampling.acceptance import Drafted

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32, UInt


def forward(
    leaves: Leaves, state: StepState, given: StepGiven, *, program: Program
) -> tuple[StepState, Forwarded]:
    """Run the model on a packed plan. The hidden states of prompt tokens stay in the state."""
    inputs = StepInput.over(given.packed, program.bucket, program.shapes)
    models = program.models(leaves, inputs)
    state, found = passed(models, inputs, given, extended(state, inputs), program)
    return state, found.forwarded


def extended(state: StepState, inputs: StepInput) -> StepState:
    """The state with the plan's new blocks in its block tables."""
    assert state.tables is not None, "in a pipeline tables are packed"
    return state._replace(tables=with_new_blocks(state.tables, inputs.blocks.new))


class Passed(NamedTuple):
    """Results of the traced model call."""

    forwarded: Forwarded
    batch: StepBatch
    held: HeldStates


def passed(
    models: Models, inputs: StepInput, given: StepGiven, state: StepState, program: Program
) -> tuple[StepState, Passed]:
    """Run the model on the step's tokens; returns the state with K and V written, and outputs."""
    model, bucket, shapes = models.model, program.bucket, program.shapes
    embeds, mrope_positions, ahead, cross = given.beside(inputs, program, model)
    drafts = None
    if program.has_drafts:
        lengths, proposed = row_lengths(inputs, state), row_drafts(inputs, state)
        drafts = run_drafts(inputs.drafts, lengths, proposed, shapes)
    tokens = input_tokens(inputs.tokens, state, drafts)
    batch = batch_of(inputs, state, bucket, shapes, drafts)
    batch = batch._replace(ahead=ahead if shapes.most_ahead else None)
    held = HeldStates()
    attention = paged_attention(batch, bucket, shapes, program.placement, held)
    positions = jnp.maximum(batch.positions, 0)
    rows = tile_of_token(bucket, shapes)
    shards = ContextShards(bucket, shapes, program.placement)
    tap = None
    if program.features.taps:
        tap = StepTaps(program.features.taps, inputs.tiles.taps[rows], positions, models.tap_arrays)
    context = StepContext(
        shards.of_tokens(positions),
        shards.of_tokens(rows),
        attention,
        shapes.max_model_len,
        state.caches,
        tap,
        shards.of_tokens(batch.positions),
        program.kept_points,
        embeds,
        rotary_positions(
            positions, row_of_token(inputs, bucket, shapes), state.offsets, mrope_positions
        ),
        cross,
        keeps_experts=shapes.experts is not None,
    )
    sharded = model(shards.of_tokens(tokens), context)
    hidden = shards.in_order(sharded)
    prompts = hidden[shapes.first_prompt(bucket) :]
    state = state._replace(caches=context.caches)
    if state.sums is not None:
        pooling = model.config.pooling
        assert pooling is not None, "a model that pools"
        sums = with_chunks(state.sums, prompts, batch, pooling, program)
        state = state._replace(sums=sums)
    ends = shards.taken(sharded, inputs.heads.logit_index)
    ran = None
    if program.makes_drafts:
        kept = {
            point: shards.in_order(found.astype(jnp.float32))
            for point, found in context.kept.items()
        }
        ran = Ran(given.packed, tokens, hidden, batch.positions, kept)
    experts = None
    if shapes.experts is not None and context.experts is not None:
        experts = experts_of_tokens(context.experts, shapes.experts, len(tokens))
    slots = slots_of(given.packed, ends, inputs, models, batch, drafts, program)
    forwarded = Forwarded(slots, {} if tap is None else tap.captured, experts, ran)
    return with_prompts(state, prompts), Passed(forwarded, batch, held)


def slots_of(
    packed: Any, ends: Array, inputs: StepInput, models: Models, batch: StepBatch,
    drafts: RunDrafts | None, program: Program,
) -> SlotInput:  # fmt: skip
    """Metadata of sampling slots for later programs; `ends` are the slots' hidden states."""
    index, shapes, count = inputs.heads.logit_index, program.shapes, len(ends)
    found = None
    if drafts is not None:
        found = slot_drafts(drafts, count, shapes.most_drafts)
    elif shapes.most_drafts:
        found = no_drafts(count, shapes.most_drafts)
    adapters = None
    if shapes.adapter_slots:
        own = models.token_adapters
        adapters = jnp.zeros(count, jnp.int32) if own is None else own[index]
    section = packed[sampling_section(program.bucket, shapes)]
    positions = with_positions(inputs.sampling, batch.positions[index]).positions
    return SlotInput(ends, section, positions, found, adapters)


def no_drafts(slots: int, most: int) -> Drafted:
    """Draft metadata for slots without drafts."""
    return Drafted(jnp.zeros(slots, jnp.int32), jnp.full((slots, most), -1, jnp.int32))


def input_tokens(
    inputs: TokenInput, state: StepState, drafts: RunDrafts | None = None
) -> Int32[Array, " tokens"]:
    """The tokens that a step runs: decode rows, then prefill tokens."""
    # Decode tokens never leave the device: each row's last sample is its next input.
    own_tokens = state.last_token.at[inputs.decode_rows].get(mode="clip")
    decode_tokens = jnp.where(inputs.decode_tokens >= 0, inputs.decode_tokens, own_tokens)
    if drafts is not None:
        decode_tokens = with_draft_tokens(decode_tokens, drafts)
    return jnp.concatenate([decode_tokens, inputs.prefill_tokens])


def with_positions(inputs: SamplingInput, ends: Int32[Array, " slots"]) -> SamplingInput:
    """Fill in sampler positions that only the device knows: one past each slot's last token, at
    `ends` i32[S]."""
    return inputs._replace(positions=jnp.where(inputs.positions >= 0, inputs.positions, ends + 1))


def experts_of_tokens(
    by_layer: Mapping[int, Array], wanted: ChosenExperts, tokens: int
) -> UInt[Array, "tokens layers chosen"]:
    """Routed experts of each token in every layer, zero-padded."""
    none = jnp.zeros((tokens, wanted.chosen), wanted.dtype)

    def of_layer(layer: int) -> Array:
        if layer not in by_layer:
            return none
        picked = by_layer[layer].astype(wanted.dtype)
        return jnp.pad(picked, ((0, 0), (0, wanted.chosen - picked.shape[1])))

    return jnp.stack([of_layer(layer) for layer in range(wanted.layers)], axis=1)


def row_of_token(inputs: StepInput, bucket: Bucket, shapes: StepShapes) -> Int32[Array, " tokens"]:
    """Row of each token; out of range for padding."""
    tiles = jnp.repeat(inputs.tiles.rows, shapes.prefill_tile)
    return jnp.concatenate([inputs.tokens.decode_rows, tiles])


def rotary_positions(
    positions: Int32[Array, " tokens"],
    rows: Int32[Array, " tokens"],
    offsets: Int32[Array, " rows"] | None,
    given: Int32[Array, "3 tokens"] | None,
) -> Int32[Array, "3 tokens"] | None:
    """mrope positions (frame, row, column) of each token; None if all equal `positions`. `offsets`:
    added to the positions of a row's later tokens; `given`: positions of image tokens, -1 for
    others."""
    if offsets is None:
        return None
    shifted = positions + offsets.at[rows].get(mode="fill", fill_value=0)
    mrope_positions = jnp.broadcast_to(shifted, (3, *shifted.shape))
    return mrope_positions if given is None else jnp.where(given >= 0, given, mrope_positions)
