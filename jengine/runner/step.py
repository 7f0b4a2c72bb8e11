"""THE step: one XLA program a (bucket, features). State in, state out; no globals.

embed -> layers -> logits at the sampled positions -> sample -> new state. Structure is decided by
static values and gone after tracing; data is decided by arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.models.context import StepContext
from jengine.models.stages import StageLayout
from jengine.runner.buckets import Bucket, StepShapes
from jengine.runner.features import Features
from jengine.runner.leaves import Leaves
from jengine.runner.paged import paged_attention
from jengine.runner.state import StepState
from jengine.runner.step_input import StepInput, tile_of_token
from jengine.runner.taps import StepTaps
from jengine.sampling import Logprobs, SampleOutput, sample, score_tokens
from sharding.placement import Placement

# Prompt tokens whose logits exist at the same time, where prompt log-probabilities are wanted.
SCORED_AT_ONCE = 64


class DeviceOutput(NamedTuple):
    """What a step leaves for the host to read."""

    sampled: SampleOutput
    prompt: Logprobs | None
    captured: dict[str, Array]  # f32 [tokens, width] a tap point


@dataclass(frozen=True)
class Stages:
    """What a step of several stages needs to know of them."""

    layout: StageLayout
    staged: tuple[bool, ...]  # whether a leaf is split by stage
    # What a stage holds between steps is laid out for this bucket: [decode rows | prefill tokens].
    largest: Bucket


@dataclass(frozen=True)
class Program:
    """What one compiled step is made of, all of it static."""

    bucket: Bucket
    features: Features
    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]  # flat leaves -> the model; called only while tracing
    placement: Placement
    stages: Stages | None = None  # None: there is one

    @property
    def sampler(self) -> str | None:
        """Kernels draw from whole rows of logits, which a device has only where it is alone."""
        alone = self.placement.mesh.size == 1
        return "triton" if self.shapes.attention == "triton" and alone else None


def step(
    leaves: Leaves, state: StepState, packed: Array, *, program: Program
) -> tuple[StepState, DeviceOutput]:
    """Run the packed plan."""
    inputs = StepInput.over(packed, program.bucket, program.shapes)
    return run(program.rebuild(leaves), inputs, state, program)


def run(
    model: Any, inputs: StepInput, state: StepState, program: Program
) -> tuple[StepState, DeviceOutput]:
    """Run the step of these inputs."""
    tokens = input_tokens(inputs, state)
    attention = paged_attention(inputs, program.bucket, program.shapes, program.placement)
    positions = jnp.maximum(inputs.positions, 0)
    rows = tile_of_token(program.bucket, program.shapes)
    taps = StepTaps(program.features.taps, inputs.taps[rows], positions)
    tap = taps if taps.sets else None
    context = StepContext(positions, rows, attention, state.caches, tap)
    hidden = model(tokens, context)
    prompts = hidden[program.bucket.decode_rows :]
    state = state._replace(caches=context.caches)
    state, output = answer(model, hidden[inputs.logit_index], prompts, inputs, state, program)
    return state, output._replace(captured=taps.captured)


def input_tokens(inputs: StepInput, state: StepState) -> Array:
    """The tokens that a step runs, i32[D + T]."""
    # Decode tokens never leave the device: each row's last sample is its next input.
    own_tokens = state.last_token.at[inputs.decode_rows].get(mode="clip")
    decode_tokens = jnp.where(inputs.decode_tokens >= 0, inputs.decode_tokens, own_tokens)
    return jnp.concatenate([decode_tokens, inputs.prefill_tokens])


def answer(
    model: Any, ends: Array, prompts: Array, inputs: StepInput, state: StepState, program: Program
) -> tuple[StepState, DeviceOutput]:
    """Sample after the hidden states `ends` [S, hidden], and score what follows `prompts`
    [T, hidden] where that is wanted."""
    logits = model.logits(ends)  # [S, V]
    with jax.named_scope("sample"):
        # One base key for all engines: a request's seed alone decides its noise, and requests
        # without one got theirs from the engine's seed.
        sampled, rows = sample(
            logits,
            state.rows,
            inputs.sampling,
            features=program.features.sampling,
            key_data=jnp.zeros(2, jnp.uint32),
            implementation=program.sampler,
        )
    # A row whose logits are not finite fails on the host; until then it runs on a harmless token.
    fed_back = jnp.maximum(sampled.tokens, 0)
    last_token = state.last_token.at[inputs.sampling.rows].set(fed_back, mode="drop")
    scores = _score_prompts(model, prompts, logits, inputs, program)
    state = state._replace(last_token=last_token, rows=rows or state.rows)
    return state, DeviceOutput(sampled, scores, {})


def _score_prompts(
    model: Any, prompts: Array, logits: Array, inputs: StepInput, program: Program
) -> Logprobs | None:
    """Log-probabilities of the token after each prompt token, a few at a time."""
    wanted, tokens = program.features.prompt_logprobs, program.bucket.prefill_tokens
    if wanted is not None and program.shapes.one_segment:
        return score_tokens(logits, inputs.targets, wanted)  # every token has its logits already
    if wanted is None or not tokens:
        return None
    parts = -(-tokens // SCORED_AT_ONCE)
    padding = parts * SCORED_AT_ONCE - tokens
    states = jnp.pad(prompts, ((0, padding), (0, 0)))
    targets = jnp.pad(inputs.targets, (0, padding))
    with jax.named_scope("score_prompts"):
        scored = lax.map(
            lambda part: score_tokens(model.logits(part[0]), part[1], wanted),
            (states.reshape(parts, SCORED_AT_ONCE, -1), targets.reshape(parts, SCORED_AT_ONCE)),
        )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:tokens], scored)
