"""The programs of a step that is a chain: the model, and what reads its hidden states behind it.

Each is a function (leaves, state, given) -> (state, results), as the whole step is. A part owns
some fields of the state: only these are donated and replaced. Nothing of sampling compiles a
`forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from jax import Array, lax

from jengine.outputs import NOT_FINITE, POOLED, StepOutput
from jengine.runner.step.heads import live_slots, sample_slots
from jengine.runner.step.hidden import Forwarded, SlotInput, logits_of, with_prompts
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.pipeline_step import pipeline_forward
from jengine.runner.step.pool import row_vectors, with_sums
from jengine.runner.step.program import Program
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.step.state import StepState
from jengine.runner.step.step import Given, beside_of, extended, inputs_of, pass_through
from jengine.runner.step.step_input import sampling_section
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import Part
from jengine.sampling import score_tokens
from jengine.sampling.acceptance import Drafted
from jengine.sampling.logprobs import Logprobs


class ChosenInput(NamedTuple):
    """Logits of sampling slots, and what the host has made of them."""

    slots: SlotInput
    logits: Any  # f32[S, vocab]
    changed: Any  # f32[S, vocab]


def forward(
    leaves: Leaves, state: StepState, given: Given, *, program: Program
) -> tuple[StepState, Forwarded]:
    """Run the model on a packed plan. The hidden states of prompt tokens stay in the state."""
    inputs = inputs_of(given, program)
    models = program.models(leaves, inputs)
    beside = beside_of(given, inputs, program, models.model)
    state, found = pass_through(models, inputs, extended(state, inputs), program, beside)
    leaving = found.leaving
    state = with_sums(state, leaving.prompts, found.ran.batch, models.model.config.pooling, program)
    state = with_prompts(state, leaving.prompts)
    drafts = leaving.drafts
    if drafts is None and program.shapes.most_drafts:
        drafts = no_drafts(len(leaving.ends), program.shapes.most_drafts)
    packed = getattr(given, "packed", given)
    section = packed[sampling_section(program.bucket, program.shapes)]
    adapters = None
    if program.shapes.adapter_slots:
        adapters = leaving.end_adapters
        adapters = jnp.zeros(len(leaving.ends), jnp.int32) if adapters is None else adapters
    slots = SlotInput(leaving.ends, section, leaving.sampling.positions, drafts, adapters)
    return state, Forwarded(slots, found.captured, found.experts)


def no_drafts(slots: int, most: int) -> Drafted:
    """Slots that are all behind their rows' last tokens."""
    return Drafted(jnp.zeros(slots, jnp.int32), jnp.full((slots, most), -1, jnp.int32))


def sample(
    leaves: Leaves, state: StepState, slots: SlotInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Sample a token of each slot from its hidden state."""
    state, logits = slot_logits(leaves, state, slots, program=program)
    return choose((), state, ChosenInput(slots, logits, None), program=program)


def slot_logits(
    leaves: Leaves, state: StepState, slots: SlotInput, *, program: Program
) -> tuple[StepState, Array]:
    """The logits of the slots, f32 [S, vocab]; those of padding may be left out."""
    model, adapters = program.head(leaves)
    # In one segment all rows have their logits computed alike, those that are scored too.
    in_order = program.shapes.one_segment
    live = None if in_order else live_slots(slots.sampling(program), program)
    logits = logits_of(model, slots.ends, live, adapters, slots.adapters)
    return state, logits.astype(jnp.float32)


def choose(
    leaves: Leaves, state: StepState, given: ChosenInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Sample a token of each slot from its logits. Log-probabilities of a request that wants raw
    ones are those of the model's own logits."""
    slots = given.slots
    sampling = slots.sampling(program)
    state, found = sample_slots(given.logits, sampling, slots.drafts, state, program, given.changed)
    return state, StepOutput(**found)


def score(
    leaves: Leaves, state: StepState, given: PromptChunk, *, program: Program
) -> tuple[StepState, Logprobs]:
    """Log-probabilities of the tokens after those of a chunk."""
    wanted = program.features.prompt_logprobs
    assert wanted is not None, "an engine that scores prompts"
    model, adapters = program.head(leaves)
    logits = logits_of(model, chunk_rows(state, given), None, adapters, given.adapters)
    return state, score_tokens(logits, given.targets, wanted, program.sampler)


def pool(
    leaves: Leaves, state: StepState, slots: SlotInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """The vector of each slot's row, through the model's own head. A slot's token is POOLED, or why
    there is no vector."""
    model, _ = program.head(leaves)
    vectors = row_vectors(slots.ends, slots.sampling(program), state.sums, model.config.pooling)
    pooled = model.pooler(vectors)
    is_finite = jnp.all(jnp.isfinite(pooled), axis=-1)
    tokens = jnp.where(is_finite, jnp.int32(POOLED), jnp.int32(NOT_FINITE))
    return state, StepOutput(tokens=tokens, pooled=pooled)


def pool_tokens(
    leaves: Leaves, state: StepState, given: PromptChunk, *, program: Program
) -> tuple[StepState, Array]:
    """What the model's own head makes of each token of a chunk."""
    model, _ = program.head(leaves)
    return state, model.pooler.of_tokens(chunk_rows(state, given))


def chunk_rows(state: StepState, given: PromptChunk) -> Array:
    """The hidden states of the tokens of a chunk."""
    assert state.prompts is not None, "an engine whose forwards keep those of prompts"
    rows = lax.dynamic_slice_in_dim(state.prompts, given.first[0], len(given.targets), -2)
    return rows if rows.ndim == 2 else rows.sum(axis=0)  # zeros but for the last stage


BODIES: dict[Part, Callable[..., tuple[StepState, Any]]] = {
    Part.FORWARD: forward,
    Part.SAMPLE: sample,
    Part.LOGITS: slot_logits,
    Part.CHOOSE: choose,
    Part.SCORE: score,
    Part.POOL: pool,
    Part.POOL_TOKENS: pool_tokens,
}


def body_of(program: Program) -> Callable[..., tuple[StepState, Any]]:
    """What such a program runs."""
    if program.stages is not None and program.features.part is Part.FORWARD:
        return pipeline_forward
    return BODIES[program.features.part]


# Parts whose leaves are those of the output head alone.
READS_HEAD = frozenset({Part.SAMPLE, Part.LOGITS, Part.SCORE, Part.POOL, Part.POOL_TOKENS})


def outputs_of_head(model: Any, rows: Array) -> Any:
    """All that such parts compute of hidden states with leaves of the model."""
    if model.config.pooling is None:
        return model.logits(rows)
    return model.pooler(rows), model.pooler.of_tokens(rows)


def owned_fields(features: Features) -> tuple[str, ...]:
    """Fields of the state that such a part replaces."""
    match features.part:
        case Part.FORWARD:
            return "caches", "tables", "held", "prompts", "sums"
        case Part.SAMPLE | Part.CHOOSE:
            adjusted = ("rows",) if features.sampling.adjust else ()
            return "last_token", "lengths", *adjusted
    return ()


def read_fields(features: Features) -> tuple[str, ...]:
    """Fields of the state that such a part only reads."""
    match features.part:
        case Part.FORWARD:
            return "last_token", "lengths", "offsets"
        case Part.SCORE | Part.POOL_TOKENS:
            return ("prompts",)
        case Part.POOL:
            return ("sums",)
    return ()


def fields_of(state: StepState, *names: tuple[str, ...]) -> tuple[tuple[Any, ...], ...]:
    """The fields of the state with each of these groups of names."""
    return tuple(tuple(getattr(state, name) for name in group) for group in names)


def with_fields(names: tuple[str, ...], values: tuple[Any, ...], state: StepState) -> StepState:
    """The state with these fields."""
    return state._replace(**dict(zip(names, values, strict=True)))


def on_fields(program: Program, body: Callable[..., tuple[StepState, Any]]) -> Callable[..., Any]:
    """A part as a function of (leaves, owned fields, read fields, given), which returns the owned
    fields and its results."""
    owned, read = owned_fields(program.features), read_fields(program.features)
    nothing: Any = StepState(*[cast(Any, None)] * len(StepState._fields))

    def run(leaves: Leaves, own: tuple[Any, ...], seen: tuple[Any, ...], given: Any) -> Any:
        state = with_fields(read, seen, with_fields(owned, own, nothing))
        state, results = body(leaves, state, given, program=program)
        return *fields_of(state, owned), results

    run.__name__ = program.features.part.value  # the program's name in profiles
    return run
