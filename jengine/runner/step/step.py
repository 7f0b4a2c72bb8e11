"""The step: one XLA program per (bucket, features). State in, state out; no globals.

embed -> layers -> heads (sample, score) -> new state. Python branches only on static values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jengine.models.context import CrossReader, GivenEmbeddings, StepContext
from jengine.outputs import StepOutput
from jengine.runner.step.across import CrossInput, cross_reader
from jengine.runner.step.batch import batch_of, row_guesses, row_lengths, with_new_blocks
from jengine.runner.step.draft_input import (
    RunDrafts,
    run_drafts,
    slot_drafts,
    with_draft_tokens,
)
from jengine.runner.step.experts import experts_of_tokens
from jengine.runner.step.guessing import with_guesses
from jengine.runner.step.heads import run_heads
from jengine.runner.step.hidden import Hidden, Ran
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.paged import paged_attention
from jengine.runner.step.planes import rotary_planes, row_of_token
from jengine.runner.step.program import Models, Program
from jengine.runner.step.recurrent import HeldStates
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput, TokenInput, tile_of_token
from jengine.runner.step.stripes import Stripes
from jengine.runner.step.taps import StepTaps
from jengine.sampling import SamplingInput

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int32


class EmbedsInput(NamedTuple):
    """A packed plan some of whose tokens come as embeddings."""

    packed: Any  # i32[...]
    rows: Any  # f32[tokens, hidden] as the embedding would give them
    mask: Any  # bool[tokens] which tokens have one

    @property
    def given(self) -> GivenEmbeddings:
        """The embeddings."""
        return GivenEmbeddings(self.rows, self.mask)


class MediaInput(NamedTuple):
    """A packed plan some of whose tokens stand for embeddings that the encoder has made."""

    packed: Any  # i32[...]
    kept: Any  # f32[rows, hidden] the encoder's array
    index: Any  # i32[tokens] which of its rows each token stands for, -1: none
    # i32[3, tokens] by which frame, row and column a token is rotated, -1: by its position.
    planes: Any
    ahead: Any  # i32[tokens] to how many later tokens of its image a token attends

    @property
    def given(self) -> GivenEmbeddings:
        """The embeddings."""
        rows = self.kept.at[self.index].get(mode="fill", fill_value=0)
        return GivenEmbeddings(rows, self.index >= 0, is_final=True)


def step(
    leaves: Leaves, state: StepState, packed: Array, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Run the packed plan."""
    inputs = StepInput.over(packed, program.bucket, program.shapes)
    return run(program.models(leaves, inputs), inputs, extended(state, inputs), program)


def step_with_embeds(
    leaves: Leaves, state: StepState, packed: EmbedsInput | MediaInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Run the packed plan, with these embeddings in place of looked up ones."""
    inputs = StepInput.over(packed.packed, program.bucket, program.shapes)
    models = program.models(leaves, inputs)
    media = packed if isinstance(packed, MediaInput) else None
    return run(models, inputs, extended(state, inputs), program, packed.given, media)


def step_across(
    leaves: Leaves, state: StepState, packed: CrossInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Run the packed plan of a model that attends to an encoder's output."""
    inputs = StepInput.over(packed.packed, program.bucket, program.shapes)
    models = program.models(leaves, inputs)
    config = models.model.config
    width = config.cross_width // config.cross_index(len(config.layers))
    cross = cross_reader(packed, inputs, program.bucket, program.shapes, width)
    return run(models, inputs, extended(state, inputs), program, cross=cross)


def extended(state: StepState, inputs: StepInput) -> StepState:
    """The state with the plan's new blocks in its block tables."""
    assert state.tables is not None, "in a pipeline tables are packed"
    return state._replace(tables=with_new_blocks(state.tables, inputs.blocks.new))


def run(
    models: Models,
    inputs: StepInput,
    state: StepState,
    program: Program,
    given: GivenEmbeddings | None = None,
    media: MediaInput | None = None,
    cross: CrossReader | None = None,
) -> tuple[StepState, StepOutput]:
    """Run the step of these inputs."""
    model, guess, head_adapters = models
    bucket, shapes = program.bucket, program.shapes
    drafts = run_drafts(
        inputs.drafts, row_lengths(inputs, state), row_guesses(inputs, state), shapes,
        runs_any=program.has_drafts,
    )  # fmt: skip
    tokens = input_tokens(inputs.tokens, state, drafts)
    planes, ahead = (None, None) if media is None else (media.planes, media.ahead)
    batch = batch_of(inputs, state, bucket, shapes, drafts)
    batch = batch._replace(ahead=ahead if shapes.most_ahead else None)
    held = HeldStates()
    attention = paged_attention(batch, bucket, shapes, program.placement, held)
    positions = jnp.maximum(batch.positions, 0)
    rows = tile_of_token(bucket, shapes)
    stripes = Stripes(bucket, shapes, program.placement)
    taps = StepTaps(program.features.taps, inputs.tiles.taps[rows], positions)
    tap = taps if taps.sets else None
    context = StepContext(
        stripes.of_tokens(positions),
        stripes.of_tokens(rows),
        attention,
        shapes.max_model_len,
        state.caches,
        tap,
        stripes.of_tokens(batch.positions),
        program.kept_points,
        given,
        rotary_planes(positions, row_of_token(inputs, bucket, shapes), state.offsets, planes),
        cross,
        keeps_experts=shapes.experts is not None,
    )
    striped = model(stripes.of_tokens(tokens), context)
    hidden = stripes.in_order(striped)
    state = state._replace(caches=context.caches)
    ends = inputs.heads.logit_index
    sampling = with_positions(inputs.sampling, batch.positions[ends])
    prompts = hidden[bucket.decode_rows :]
    guesses = slot_drafts(drafts, len(ends), shapes.most_drafts)
    leaving = Hidden(
        model,
        stripes.taken(striped, ends),
        prompts,
        inputs.heads,
        sampling,
        guesses,
        head_adapters,
        batch,
    )
    state, output = run_heads(leaving, state, program)
    state = held.settled(state, inputs.tokens.decode_rows, batch, program.placement)
    ran = Ran(tokens, hidden, batch, rows, attention, context.kept)
    count = inputs.drafts.count
    state = with_guesses(state, output.tokens, leaving, ran, guess, count, program)
    guesses = None if guess is None else state.guesses
    if shapes.experts is not None and context.experts is not None:
        experts = experts_of_tokens(context.experts, shapes.experts, len(tokens))
        output = output._replace(experts=experts)
    return state, output._replace(captured=taps.captured, guesses=guesses)


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
