"""Heads: functions of the last hidden states that give a step's results.

Features name the heads of a step; a head is a function and a line in HEADS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.outputs import NO_TOKEN, StepOutput
from jengine.runner.step.hidden import Hidden, logits_of
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState
from jengine.runner.variants.buckets import SCORED_AT_ONCE, SCORED_AT_ONCE_ON_GPUS
from jengine.sampling import SamplingInput, sample, score_tokens
from jengine.sampling.acceptance import Drafted, last_of_each
from jengine.sampling.logprobs import Logprobs


def run_heads(hidden: Hidden, state: StepState, program: Program) -> tuple[StepState, StepOutput]:
    """The results of all heads of the program's features."""
    results: dict[str, Any] = {}
    for name in program.features.heads:
        state, found = HEADS[name](hidden, state, program)
        results.update(found)
    return state, StepOutput(**results)


def sample_head(
    hidden: Hidden, state: StepState, program: Program
) -> tuple[StepState, dict[str, Any]]:
    """Sample the token that follows each slot's row."""
    logits = slot_logits(hidden, program)
    return sample_slots(logits, hidden.sampling, hidden.drafts, state, program)


def sample_slots(
    logits: Array,
    slots: SamplingInput,
    drafts: Drafted | None,
    state: StepState,
    program: Program,
    changed: Array | None = None,
) -> tuple[StepState, dict[str, Any]]:
    """Sample a token of each slot. It is its row's next input, at its length; of the tokens after
    drafts the last one that counts is. `changed`: the logits after processors of the host."""
    with jax.named_scope("sample"):
        # One base key for all engines: a request's seed alone decides its noise, and requests
        # without one got theirs from the engine's seed.
        sampled, rows = sample(
            logits,
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
    return state, {"tokens": tokens, "logprobs": sampled.logprobs}


def slot_logits(hidden: Hidden, program: Program) -> Array:
    """The logits of the sampling slots, f32 [S, vocab]; those of padding may be left out."""
    live = live_slots(hidden.sampling, program)
    return logits_of(hidden.model, hidden.ends, live, hidden.adapters, hidden.end_adapters)


def live_slots(slots: SamplingInput, program: Program) -> Array:
    """i32[S]: -1 for slots of padding."""
    return jnp.where(slots.rows < program.shapes.max_rows, 0, -1)


def prompt_logprobs_head(
    hidden: Hidden, state: StepState, program: Program
) -> tuple[StepState, dict[str, Any]]:
    """Log-probabilities of the token after each prompt token, a few at a time."""
    wanted, tokens = program.features.prompt_logprobs, program.bucket.prefill_tokens
    assert wanted is not None, "the features do not name this head"
    targets = hidden.heads.targets
    if not tokens:
        return state, {}
    places = program.bucket.decode_rows + jnp.arange(tokens, dtype=jnp.int32)

    def score(states: Array, targets: Array, places: Array) -> Logprobs:
        own = None if hidden.token_adapters is None else hidden.token_adapters[places]
        logits = logits_of(hidden.model, states, None, hidden.adapters, own)
        return score_tokens(logits, targets, wanted, program.sampler)

    with jax.named_scope("score_prompts"):
        in_chunks = score_in_turn if program.shapes.attention == "triton" else score_in_loop
        scored = in_chunks(score, hidden.prompts, targets, places)
    return state, {"prompt_logprobs": scored}


# Hidden states, the tokens after them, and their places among all tokens.
Score = Callable[[Array, Array, Array], Logprobs]


def score_in_loop(score: Score, states: Array, targets: Array, places: Array) -> Logprobs:
    """The scores of all tokens, a chunk at a time."""
    tokens = len(targets)
    parts = -(-tokens // SCORED_AT_ONCE)
    padding = parts * SCORED_AT_ONCE - tokens
    states = jnp.pad(states, ((0, padding), (0, 0))).reshape(parts, SCORED_AT_ONCE, -1)
    targets = jnp.pad(targets, (0, padding)).reshape(parts, SCORED_AT_ONCE)
    places = jnp.pad(places, (0, padding), "edge").reshape(parts, SCORED_AT_ONCE)
    scored = lax.map(lambda part: score(*part), (states, targets, places))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:tokens], scored)


def score_in_turn(score: Score, states: Array, targets: Array, places: Array) -> Logprobs:
    """The same without a loop, in each iteration of which a CUDA graph would end.

    Each chunk begins at an index that depends on the results of the chunk before, as XLA would make
    one matmul of them all, with logits of all tokens in memory.
    """
    found, index = list[Logprobs](), jnp.int32(0)
    for first in range(0, len(targets), SCORED_AT_ONCE_ON_GPUS):
        chunk = slice(first, min(first + SCORED_AT_ONCE_ON_GPUS, len(targets)))
        count = chunk.stop - chunk.start
        some = lax.dynamic_slice_in_dim(states, first + index, count)
        found.append(score(some, targets[chunk], places[chunk]))
        # On all of them, so that no logits are kept. No rank is negative, and no id below -1.
        one = Logprobs(*(x.reshape(count, -1)[0, -1] for x in found[-1]))
        index = jnp.minimum(one.rank + one.ids + 1 + (one.values > 0), 0)
    return Logprobs(*map(jnp.concatenate, zip(*found, strict=True)))


# In: hidden states and the state. Out: the new state, and fields of StepOutput.
Head = Callable[[Hidden, StepState, Program], tuple[StepState, dict[str, Any]]]
HEADS: dict[str, Head] = {
    "sampled": sample_head,
    "prompt_logprobs": prompt_logprobs_head,
}
