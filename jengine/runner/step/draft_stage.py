"""Drafting on the device: proposes the next step's draft tokens from this step's outputs.

In: a step's tokens, hidden states and samples, and a drafter: a draft model, or heads on the model.
Out: the state with draft tokens for each row that sampled, and the drafter's KV cache written. Does
not affect samples: a bad draft only costs time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from jengine.models.context import Mixer, MixInputs, StepContext
from jengine.plan import NO_DRAFTER
from jengine.runner.step.batch import StepBatch, batch_at, first_pages, tables_of
from jengine.runner.step.hidden import Ran, SlotInput
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.paged import paged_attention
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput, tile_of_token
from jengine.runner.variants.buckets import Bucket
from jengine.sampling import SamplingInput, sample
from sharding.placement import Placement

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int32


class DraftStageInput(NamedTuple):
    """Outputs of a step that its drafter reads."""

    ran: Ran
    slots: SlotInput
    sampled: Any  # i32[S] the token of each slot, negative if invalid or not accepted


class Ends(NamedTuple):
    """The R rows that sampled a token: slot, row, token and position."""

    slots: Array  # i32[R] the sampling slot of the last accepted token
    rows: Array  # i32[R] engine row; max_rows for padding
    tokens: Array  # i32[R] that token
    positions: Array  # i32[R] its position; -1 for padding


@dataclass(frozen=True)
class DrafterInput:
    """A drafter's inputs, and how it samples and attends."""

    target: Any  # the target model
    inputs: StepInput
    ran: Ran
    hidden: Array  # f32[S, hidden] at the sampling slots
    sampling: SamplingInput
    sampled: Array  # i32[S] as in DraftStageInput
    ends: Ends
    state: StepState
    program: Program

    @property
    def placement(self) -> Placement:
        """Without prefill context parallelism: a drafter is small, so each device runs all
        tokens."""
        return self.program.placement.with_all_tokens

    @property
    def count(self) -> Array:
        """i32[]: draft tokens wanted per row."""
        return self.inputs.drafts.count[0]

    @property
    def most(self) -> int:
        """The maximum number of draft tokens per row."""
        return self.program.shapes.most_drafts

    def wanted(self, index: int) -> Array:
        """i32[R]: position of each row's `index`-th draft pass; -1 where it runs none."""
        limit = self.program.shapes.max_model_len
        place = self.ends.positions + index
        runs = (self.ends.positions >= 0) & (index < self.count) & (place < limit)
        return jnp.where(runs, place, -1)

    def next_tokens(self) -> Int32[Array, " tokens"]:
        """The token following each token that the step ran: from the prompt, or sampled. Undefined
        after rejected drafts."""
        heads, decodes = self.inputs.heads, self.program.bucket.decode_rows
        index = heads.logit_index
        known = jnp.concatenate([jnp.zeros(decodes, jnp.int32), heads.targets])
        used = self.sampling.rows < self.program.shapes.max_rows
        place = jnp.where(used, index, len(known))  # past the end: dropped
        return known.at[place].set(jnp.maximum(self.sampled, 0), mode="drop")

    def draw(self, logits: Float[Array, "rows vocab"], index: int) -> Int32[Array, " rows"]:
        """Sample the draft token `index` after the last, with the Gumbel noise that verification
        will use: equal distributions then give equal tokens."""
        own: SamplingInput = jax.tree.map(lambda x: x[self.ends.slots], self.sampling)
        own = own._replace(rows=self.ends.rows, positions=self.ends.positions + 1 + index)
        features = self.program.features.sampling
        found, _ = sample(
            self.program.gathered(logits), None, own, features=features,
            key_data=jnp.zeros(2, jnp.uint32), implementation=self.program.sampler,
        )  # fmt: skip
        return found.tokens

    def again(self, caches: tuple[Array, ...]) -> StepContext:
        """Attention context over all tokens that the step ran, for the drafter's layers; all
        padding if the plan wants no drafts."""
        bucket, shapes = self.program.bucket, self.program.shapes
        assert self.state.tables is not None, "in a pipeline there are no drafts"
        decodes = self.ran.positions[: bucket.decode_rows]
        batch = batch_at(decodes, self.inputs, self.state.tables, bucket, shapes)
        if not bucket.prefill_tokens:  # prompts are always read
            positions = jnp.where(self.count == NO_DRAFTER, -1, batch.positions)
            batch = batch._replace(positions=positions)
        mixer = paged_attention(batch, bucket, shapes, self.placement)
        mixer, live = shifted(mixer, self.first_layer), batch.positions
        rows, longest = tile_of_token(bucket, shapes), shapes.max_model_len
        return StepContext(jnp.maximum(live, 0), rows, mixer, longest, caches, None, live)

    def decode(self, positions: Int32[Array, " tokens"], caches: tuple[Array, ...]) -> StepContext:
        """Attention context of tokens at these positions, one or several consecutive ones per
        row."""
        shapes, program = self.program.shapes, self.program
        owners = jnp.repeat(self.ends.rows, len(positions) // len(self.ends.rows))
        bucket = Bucket(len(positions), 0, program.bucket.pages)
        firsts = [first_pages(group, positions, shapes) for group in shapes.groups]
        assert self.state.tables is not None, "in a pipeline there are no drafts"
        tables = tuple(
            tables_of(self.state.tables, index, shapes, bucket, owners, first)
            for index, first in enumerate(firsts)
        )
        starts = tuple(first * shapes.block_size for first in firsts)
        no_tiles = jnp.zeros(0, jnp.int32)
        batch = StepBatch(positions, tables, starts, runs=no_tiles, tile_rows=no_tiles)
        mixer = paged_attention(batch, bucket, shapes, self.placement)
        rows = jnp.arange(len(positions), dtype=jnp.int32)
        shift = shifted(mixer, self.first_layer)
        places = jnp.maximum(positions, 0)
        return StepContext(places, rows, shift, shapes.max_model_len, caches, None, positions)

    @property
    def first_layer(self) -> int:
        """Index of the drafter's first layer among cached layers."""
        assert self.program.drafter is not None, "this program drafts nothing"
        return self.program.drafter.first_layer


class Drafter(Protocol):
    """Proposes draft tokens on the device."""

    def __call__(
        self, given: DrafterInput
    ) -> tuple[Int32[Array, "rows drafts"], tuple[Array, ...]]:
        """Return draft tokens per row, and the updated caches."""
        ...


def make_drafts(
    leaves: Leaves, state: StepState, given: DraftStageInput, *, program: Program
) -> tuple[StepState, Array]:
    """Run the drafter; returns the state with the draft tokens, and the draft tokens."""
    target, drafter = program.drafting(leaves)
    inputs = StepInput.over(given.ran.packed, program.bucket, program.shapes)
    sampling = given.slots.sampling(program)
    ends, own = ends_of(sampling, state, program), given.slots.ends
    drafting = DrafterInput(
        target, inputs, given.ran, own, sampling, given.sampled, ends, state, program
    )
    assert state.next_drafts is not None, "an engine that keeps drafts"
    with jax.named_scope("draft"):
        next_drafts, caches = drafter(drafting)
        index = jnp.arange(next_drafts.shape[1], dtype=jnp.int32)[None, :]
        next_drafts = jnp.where(index < drafting.count, next_drafts, -1)
        kept = state.next_drafts.at[ends.rows].set(next_drafts, mode="drop")
    return state._replace(caches=caches, next_drafts=kept), kept


def ends_of(sampling: SamplingInput, state: StepState, program: Program) -> Ends:
    """Rows that sampled a token, one slot each, at their new lengths."""
    most = program.shapes.max_rows
    lengths = state.lengths.at[sampling.rows].get(mode="fill", fill_value=-1)
    is_end = (sampling.rows < most) & (sampling.positions == lengths)
    slots = jnp.argsort(~is_end, stable=True)[:most].astype(jnp.int32)
    is_end = is_end[slots]
    rows = jnp.where(is_end, sampling.rows[slots], most)
    tokens = state.last_token.at[rows].get(mode="fill", fill_value=0)
    return Ends(slots, rows, tokens, jnp.where(is_end, lengths[slots], -1))


def shifted(mixer: Mixer, first_layer: int) -> Mixer:
    """A mixer that counts layers from `first_layer`."""

    def mix(caches: Any, layer: int, inputs: MixInputs) -> tuple[Array, Any]:
        return mixer(caches, first_layer + layer, inputs)

    return mix
