"""Head programs of generative models: hidden states to logits, sampled tokens and prompt scores.

Each of SAMPLE, LOGITS, CHOOSE and SCORE (see `variants/parts.py`) is one function here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from jengine.outputs import NO_TOKEN, StepOutput
from jengine.runner.step.hidden import SlotInput, chunk_rows, logits_of
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.program import Program
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.step.state import StepState
from jengine.sampling import SamplingInput, score_tokens
from jengine.sampling import sample as sample_tokens
from jengine.sampling.acceptance import Drafted, last_of_each
from jengine.sampling.logprobs import Logprobs


class ChosenInput(NamedTuple):
    """Logits of sampling slots, before and after the host's logits processors."""

    slots: SlotInput
    logits: Any  # f32[S, vocab]
    changed: Any  # f32[S, vocab]


def sample(
    leaves: Leaves, state: StepState, slots: SlotInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Sample a token per slot from its hidden state."""
    state, logits = slot_logits(leaves, state, slots, program=program)
    return choose((), state, ChosenInput(slots, logits, None), program=program)


def slot_logits(
    leaves: Leaves, state: StepState, slots: SlotInput, *, program: Program
) -> tuple[StepState, Array]:
    """Logits of the slots, f32 [S, vocab]; padding slots may be skipped."""
    model, adapters = program.head(leaves)
    # In one segment no rows are skipped, so that sampling and scoring compute logits alike.
    in_order = program.shapes.one_segment
    live = None if in_order else live_slots(slots.sampling(program), program)
    logits = logits_of(model, slots.ends, live, adapters, slots.adapters)
    return state, logits.astype(jnp.float32)


def choose(
    leaves: Leaves, state: StepState, given: ChosenInput, *, program: Program
) -> tuple[StepState, StepOutput]:
    """Sample a token per slot from its logits. Raw log-probabilities are those of the unprocessed
    logits."""
    slots = given.slots
    sampling = slots.sampling(program)
    return sample_slots(given.logits, sampling, slots.drafts, state, program, given.changed)


def score(
    leaves: Leaves, state: StepState, given: PromptChunk, *, program: Program
) -> tuple[StepState, Logprobs]:
    """Log-probabilities of the tokens that follow a chunk's tokens."""
    wanted = program.features.prompt_logprobs
    assert wanted is not None, "an engine that scores prompts"
    model, adapters = program.head(leaves)
    rows = chunk_rows(state, given)
    if program.stages is not None:  # a pipeline's forward omits the last norm
        rows = model.norm(rows)
    logits = logits_of(model, rows, None, adapters, given.adapters)
    return state, score_tokens(logits, given.targets, wanted, program.sampler)


def sample_slots(
    logits: Array,
    slots: SamplingInput,
    drafts: Drafted | None,
    state: StepState,
    program: Program,
    changed: Array | None = None,
) -> tuple[StepState, StepOutput]:
    """Sample a token per slot and store it as the row's next input, with the row's new length; with
    drafts, the token of the last accepted slot. `changed`: logits after host processors."""
    with jax.named_scope("sample"):
        # A constant base key: noise depends on the request's seed alone, which the engine's seed
        # determines for requests without one.
        sampled, rows = sample_tokens(
            program.gathered(logits),
            state.rows,
            slots,
            features=program.features.sampling,
            key_data=jnp.zeros(2, jnp.uint32),
            implementation=program.sampler,
            drafts=drafts,
            changed=changed,
        )
    # A row with token -1 fails on the host; until then its input is token 0.
    fed_back = jnp.maximum(sampled.tokens, 0)
    owners, tokens = slots.rows, sampled.tokens
    if drafts is not None and sampled.counts is not None:
        is_last = last_of_each(sampled.counts, drafts.offsets)
        owners = jnp.where(is_last, owners, program.shapes.max_rows)  # past the end: dropped
        tokens = jnp.where(sampled.counts, tokens, NO_TOKEN)
    state = state._replace(
        last_token=state.last_token.at[owners].set(fed_back, mode="drop"),
        lengths=state.lengths.at[owners].set(slots.positions, mode="drop"),
        rows=rows or state.rows,
    )
    return state, StepOutput(tokens, cast(Any, sampled.logprobs))


def live_slots(slots: SamplingInput, program: Program) -> Array:
    """i32[S]: -1 for padding slots."""
    return jnp.where(slots.rows < program.shapes.max_rows, 0, -1)
