"""The forward of a pipeline: one program in which every stage runs its layers on its own plan.

Each stage sends its activations to the next with a `ppermute`, and with them what later stages need
of the entering plan's images: mrope positions, and which tokens attend to later ones. A plan enters
the first stage, and `num_stages - 1` steps later it leaves the last one and is sampled, on all
devices together. All stages have the same layer slots; a stage skips those that its layers do not
fill (`models/stages.py`). The scheduler knows only that a sampled row may run again some plans
later, and gives each plan its share of the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from jengine.models.context import GivenEmbeddings, StepContext
from jengine.models.decoder import Arrived
from jengine.runner.step.adapter_rows import token_slots
from jengine.runner.step.batch import stage_batch
from jengine.runner.step.beside import Beside, StepGiven
from jengine.runner.step.forward import input_tokens, rotary_positions, row_of_token
from jengine.runner.step.hidden import Forwarded, SlotInput, with_prompts
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.paged import paged_attention
from jengine.runner.step.program import Program, Stages
from jengine.runner.step.state import Held, StepState
from jengine.runner.step.step_input import (
    StepInput,
    TokenInput,
    sampling_section,
    sampling_views,
    tile_of_token,
)
from jengine.runner.variants.buckets import Bucket
from sharding.axes import STAGES

# Logical axes of the packed input of all stages.
PACKED_AXES = ("stage", None)
BY_STAGE, EVERYWHERE = PartitionSpec(STAGES), PartitionSpec()


def pipeline_forward(
    leaves: Leaves, state: StepState, given: StepGiven, *, program: Program
) -> tuple[StepState, Forwarded]:
    """Run every stage on its plan; the packed plans have one row per stage."""
    assert program.stages is not None, "a step of one stage is forward.forward"
    shared, packed = _shared_inputs(given.packed, program, state), given.packed
    own, adapters = leaves[: program.num_leaves], leaves[program.num_leaves :]
    model, by_stage = program.rebuild(own), {}
    if program.adapters is not None:
        by_stage = program.adapters.arrays(adapters, staged=True)
        program.adapters.install(model, program.adapters.arrays(adapters), shared.entering)
    with jax.named_scope("embed"):
        beside = given.beside(None, program, model)
        entering = _entering(model, shared, beside, state)
    later = tuple((one.rows, one.mask) for one in beside.given)
    run = program.placement.on_each_stage(
        lambda *parts: _stage(*parts, program=program),
        (BY_STAGE, BY_STAGE, BY_STAGE, BY_STAGE, EVERYWHERE, EVERYWHERE, BY_STAGE),
        (BY_STAGE, BY_STAGE, EVERYWHERE, BY_STAGE),
    )
    own = tuple(x for x, staged in zip(own, program.stages.staged, strict=True) if staged)
    caches, held, ends, prompts = run(
        own, by_stage, state.caches, state.held, entering, later, packed
    )
    # Prompt states stay sharded by stage: only chunks that are scored are reduced.
    state = with_prompts(state._replace(caches=caches, held=held), prompts)
    ends = model.norm(ends)
    positions = sampling_views(shared.section, len(ends), program.shapes).positions
    return state, Forwarded(
        SlotInput(ends, shared.section, positions, None, shared.leaving), {}, None
    )


class SharedInputs(NamedTuple):
    """Inputs replicated over stages: of the entering plan and of the leaving one."""

    tokens: TokenInput  # of the entering plan
    positions: Array  # i32[D + T] of these
    rows: Any  # i32[D + T] their rows, as in `row_of_token`; None: not needed
    entering: Any  # i32[D + T] their adapter slots; None: the program has no LoRA
    section: Array  # the sampler's section of the leaving plan
    leaving: Any  # i32[S] adapter slots of its sampling slots; None: the engine has no LoRA


def _shared_inputs(packed: Array, program: Program, state: StepState) -> SharedInputs:
    """The shared inputs, on all devices."""

    def own(packed: Array) -> SharedInputs:
        inputs = StepInput.over(packed[0], program.bucket, program.shapes)
        section = packed[0, sampling_section(program.bucket, program.shapes)]
        positions = stage_batch(inputs, program.shapes).positions
        rows, entering, leaving = None, None, None
        if state.offsets is not None:
            rows = _of_stage(0, packed, row_of_token(inputs, program.bucket, program.shapes))
        if program.shapes.adapter_slots:
            leaving = jnp.zeros_like(inputs.heads.logit_index)
        if program.adapters is not None:
            slots = token_slots(inputs.adapters.slots, program.bucket, program.shapes)
            entering, last = _of_stage(0, packed, slots), program.placement.num_stages - 1
            leaving = _of_stage(last, packed, slots[inputs.heads.logit_index])
        return SharedInputs(
            inputs.tokens, _of_stage(0, packed, positions), rows, entering, section, leaving
        )

    return program.placement.on_each_stage(own, (BY_STAGE,), EVERYWHERE)(packed)


def _entering(model: Any, shared: SharedInputs, beside: Beside, state: StepState) -> Held:
    """The first stage's input: embedded tokens, mrope positions and `ahead`."""
    assert state.held is not None, "a step of one stage is forward.forward"
    tokens, positions = input_tokens(shared.tokens, state), jnp.maximum(shared.positions, 0)
    turns = rotary_positions(positions, shared.rows, state.offsets, beside.mrope_positions)
    turns, ahead = None if turns is None else turns.T, None
    if state.held.ahead is not None:
        ahead = jnp.zeros_like(tokens) if beside.ahead is None else beside.ahead
    return Held(model.embedded(tokens, positions, beside.given), turns, ahead)


def _of_stage(stage: int, packed: Array, values: Array) -> Array:
    """Broadcast one stage's values to all stages."""
    return lax.psum(jnp.where(_number(packed) == stage, values, 0), STAGES)


def _stage(
    leaves: Leaves,
    adapters: dict[str, Leaves],
    caches: tuple[Array, ...],
    held: Held,
    entering: Held,
    given: tuple[tuple[Array, Array], ...],
    packed: Array,
    *,
    program: Program,
) -> tuple[tuple[Array, ...], Held, Array, Array]:
    """The layers of one stage, on its shards of the arrays; held and packed are [1, ...]. `given`:
    rows and masks of the embeddings given to the entering plan."""
    stages, placement, bucket = program.stages, program.placement.in_stage(), program.bucket
    assert stages is not None, "a step of one stage is forward.forward"
    stage, count = _number(packed), placement.num_stages
    inputs = StepInput.over(packed[0], bucket, program.shapes)
    own = jax.tree.map(
        lambda new, old: jnp.where(stage == 0, new, _taken(old[0], bucket, stages.largest)),
        entering,
        held,
    )
    # Without `embeds` no plan in flight has image tokens.
    ahead = own.ahead if program.features.embeds else None
    batch = stage_batch(inputs, program.shapes)._replace(ahead=ahead)
    positions = jnp.maximum(batch.positions, 0)
    attention = paged_attention(batch, bucket, program.shapes, placement)
    rows = tile_of_token(bucket, program.shapes)
    longest = program.shapes.max_model_len
    context = StepContext(
        positions, rows, attention, longest, caches,
        # Only layers of the first stage add them.
        given=[GivenEmbeddings(embeds, mask & (stage == 0)) for embeds, mask in given],
        mrope_positions=None if own.mrope_positions is None else own.mrope_positions.T,
    )  # fmt: skip
    model = program.rebuild(_with_gaps(leaves, stages.staged))
    if not stages.layout.is_even:
        model.arrived = _layer_or_input(stages, stage)
    if program.adapters is not None:
        slots = token_slots(inputs.adapters.slots, bucket, program.shapes)
        program.adapters.install(model, adapters, slots)
    x = model.through_layers(own.x, context)
    last = stage == count - 1
    ends = lax.psum(jnp.where(last, x[inputs.heads.logit_index], 0.0), STAGES)
    prompts = jnp.where(last, x[None, bucket.decode_rows :], 0.0)
    onward = [(one, one + 1) for one in range(count - 1)]

    def passed(old: Array, new: Array) -> Array:
        received = lax.ppermute(new, STAGES, onward)
        # The first stage receives zeros anyway, but XLA leaves a plain copy of a ppermute's result
        # out of the CUDA graph; this select makes it a fusion, which is captured.
        return _kept(old, jnp.where(stage == 0, 0, received), bucket, stages.largest)

    held = jax.tree.map(passed, held, own._replace(x=x))
    return context.caches, held, ends, prompts


def _number(packed: Array) -> Array:
    """The stage's index, the last packed number: `axis_index` would split the CUDA graph."""
    return packed[0, -1]


def _with_gaps(leaves: Leaves, staged: tuple[bool, ...]) -> tuple[Any, ...]:
    """A stage's leaves at their indices; None for leaves not split by stage."""
    own = iter(leaves)
    return tuple(next(own) if is_own else None for is_own in staged)


def _layer_or_input(stages: Stages, stage: Array) -> Arrived:
    """Make a slot's layer the identity in stages that skip the slot."""
    runs = jnp.asarray(stages.layout.runs)[stage]  # bool[slots]

    def of_slot(slot: int, layer: Any, x: Array) -> tuple[Any, Array]:
        if all(own[slot] for own in stages.layout.runs):
            return layer, x
        return lambda x, context: jnp.where(runs[slot], layer(x, context), x), x

    return of_slot


def _taken(held: Array, bucket: Bucket, largest: Bucket) -> Array:
    """Take the bucket's activations from those held for the largest bucket."""
    first = largest.decode_rows
    return jnp.concatenate([
        held[: bucket.decode_rows], held[first : first + bucket.prefill_tokens]
    ])  # fmt: skip


def _kept(held: Array, x: Array, bucket: Bucket, largest: Bucket) -> Array:
    """Write the bucket's activations back."""
    held = held.at[0, : bucket.decode_rows].set(x[: bucket.decode_rows])
    if not bucket.prefill_tokens:
        return held
    first = largest.decode_rows
    prompts = slice(first, first + bucket.prefill_tokens)
    return held.at[0, prompts].set(x[bucket.decode_rows :])
