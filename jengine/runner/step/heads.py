"""Heads: functions of the last hidden states that give a step's results.

Features name the heads of a step; a head is a function and a line in HEADS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.models.language_model import LanguageModel
from jengine.outputs import NO_TOKEN, StepOutput
from jengine.runner.step.hidden import Hidden
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState
from jengine.sampling import sample, score_tokens
from jengine.sampling.acceptance import last_of_each

# Prompt tokens per chunk of prompt log-probabilities, which bounds the memory of their logits.
SCORED_AT_ONCE = 64


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
    """Sample the token that follows each slot's row. It is the row's next input, at its length; of
    the tokens after drafts the last one that counts is."""
    with jax.named_scope("sample"):
        # One base key for all engines: a request's seed alone decides its noise, and requests
        # without one got theirs from the engine's seed.
        sampled, rows = sample(
            slot_logits(hidden, state, program),
            state.rows,
            hidden.sampling,
            features=program.features.sampling,
            key_data=jnp.zeros(2, jnp.uint32),
            implementation=program.sampler,
            drafts=hidden.drafts,
        )
    # A row with token -1 fails on the host; until then its input is token 0.
    fed_back = jnp.maximum(sampled.tokens, 0)
    owners, tokens = hidden.sampling.rows, sampled.tokens
    if hidden.drafts is not None and sampled.counts is not None:
        is_last = last_of_each(sampled.counts, hidden.drafts.offsets)
        owners = jnp.where(is_last, owners, state.last_token.shape[0])  # past the end: dropped
        tokens = jnp.where(sampled.counts, tokens, NO_TOKEN)
    state = state._replace(
        last_token=state.last_token.at[owners].set(fed_back, mode="drop"),
        lengths=state.lengths.at[owners].set(hidden.sampling.positions, mode="drop"),
        rows=rows or state.rows,
    )
    return state, {"tokens": tokens, "logprobs": sampled.logprobs}


def slot_logits(hidden: Hidden, state: StepState, program: Program) -> Array:
    """The logits of the sampling slots, f32 [S, vocab]; those of padding may be left out."""
    # In one segment prompts are scored at padding slots too, with the same logits.
    if program.shapes.one_segment or not isinstance(hidden.model, LanguageModel):
        return hidden.model.logits(hidden.ends)
    live = jnp.where(hidden.sampling.rows < state.last_token.shape[0], 0, -1)
    return hidden.model.live_logits(hidden.ends, live)


def prompt_logprobs_head(
    hidden: Hidden, state: StepState, program: Program
) -> tuple[StepState, dict[str, Any]]:
    """Log-probabilities of the token after each prompt token, a few at a time."""
    wanted, tokens = program.features.prompt_logprobs, program.bucket.prefill_tokens
    assert wanted is not None, "the features do not name this head"
    model, targets = hidden.model, hidden.heads.targets
    if program.shapes.one_segment:  # every token is a slot: XLA computes the logits only once
        scored = score_tokens(model.logits(hidden.ends), targets, wanted, program.sampler)
        return state, {"prompt_logprobs": scored}
    if not tokens:
        return state, {}
    parts = -(-tokens // SCORED_AT_ONCE)
    padding = parts * SCORED_AT_ONCE - tokens
    states = jnp.pad(hidden.prompts, ((0, padding), (0, 0)))
    targets = jnp.pad(targets, (0, padding))
    with jax.named_scope("score_prompts"):
        scored = lax.map(
            lambda part: score_tokens(model.logits(part[0]), part[1], wanted, program.sampler),
            (states.reshape(parts, SCORED_AT_ONCE, -1), targets.reshape(parts, SCORED_AT_ONCE)),
        )
    scored = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:tokens], scored)
    return state, {"prompt_logprobs": scored}


# In: hidden states and the state. Out: the new state, and fields of StepOutput.
Head = Callable[[Hidden, StepState, Program], tuple[StepState, dict[str, Any]]]
HEADS: dict[str, Head] = {"sampled": sample_head, "prompt_logprobs": prompt_logprobs_head}
