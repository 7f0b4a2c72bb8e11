"""Steps in one program, where the forward and the sampler cannot be queued one after the other.

With drafts, recurrent layers update their states once the sampler has accepted tokens, since a
state cannot be rolled back. In multi-step decode each of several runs reads the tokens of the run
before: outputs have a leading axis with one entry per run, and the call ends early once every row
has sampled one of its stop ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.outputs import StepOutput
from jengine.runner.step.beside import StepGiven
from jengine.runner.step.forward import extended, passed
from jengine.runner.step.heads import sample
from jengine.runner.step.hidden import Forwarded
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.program import Models, Program
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Bool, Int32

# Token of runs after the early end. Elsewhere it marks failed rows; here every row has ended, so
# the scheduler does not read it.
NOT_RUN = -1


class LoopCarry(NamedTuple):
    """Carry of the multi-step loop."""

    count: Array  # i32[] runs so far
    goes_on: Array  # bool[S] slots whose row has not ended
    state: StepState
    outputs: StepOutput  # of all runs


def step(
    leaves: Leaves, state: StepState, given: StepGiven, *, program: Program
) -> tuple[StepState, tuple[Forwarded, StepOutput]]:
    """Run the packed plan. Returns what later programs read, and the sampled output."""
    inputs = StepInput.over(given.packed, program.bucket, program.shapes)
    models = program.models(leaves, inputs)
    return run(leaves, models, inputs, given, extended(state, inputs), program)


def run(
    leaves: Leaves, models: Models, inputs: StepInput, given: StepGiven, state: StepState,
    program: Program,
) -> tuple[StepState, tuple[Forwarded, StepOutput]]:  # fmt: skip
    """Run the model, sample, and commit recurrent states of accepted drafts."""
    state, found = passed(models, inputs, given, state, program)
    state, output = sample(program.of_head(leaves), state, found.forwarded.slots, program=program)
    rows = inputs.tokens.decode_rows
    state = found.held.settled(state, rows, found.batch, program.placement)
    return state, (found.forwarded, output)


def multi_step(
    leaves: Leaves, state: StepState, given: StepGiven, *, program: Program
) -> tuple[StepState, tuple[None, StepOutput]]:
    """Run the packed plan as many times as it says."""
    inputs = StepInput.over(given.packed, program.bucket, program.shapes)
    models = program.models(leaves, inputs)
    state = extended(state, inputs)
    rows, endings = inputs.sampling.rows, inputs.multi_step.endings
    last = state.last_token.at[rows].get(mode="clip")

    def once_from(state: StepState) -> tuple[StepState, StepOutput]:
        state, (forwarded, output) = run(leaves, models, inputs, given, state, program)
        return state, forwarded.completing(output)

    def wanted(progress: LoopCarry) -> Array:
        return (progress.count < inputs.multi_step.repeats[0]) & jnp.any(progress.goes_on)

    def once(progress: LoopCarry) -> LoopCarry:
        count = progress.count
        state, output = once_from(progress.state)
        outputs = jax.tree.map(
            lambda all_runs, own: lax.dynamic_update_index_in_dim(all_runs, own, count, 0),
            progress.outputs,
            output,
        )
        goes_on = progress.goes_on & ~ended(output.tokens, endings)
        return LoopCarry(count + 1, goes_on, state, outputs)

    begin = LoopCarry(
        jnp.int32(0),
        (rows < program.shapes.max_rows) & ~ended(last, endings),
        state,
        nothing(jax.eval_shape(lambda: once_from(state)[1]), program),
    )
    end = lax.while_loop(wanted, once, begin)
    return end.state, (None, end.outputs)


def ended(
    tokens: Int32[Array, " slots"], endings: Int32[Array, "slots endings"]
) -> Bool[Array, " slots"]:
    """Whether a token ends its row: a stop id, or -1 for non-finite logits."""
    return (tokens < 0) | jnp.any(tokens[:, None] == endings, axis=1)


def nothing(output: StepOutput, program: Program) -> StepOutput:
    """Empty outputs before the first run."""
    most = program.bucket.repeats
    empty = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), output)
    tokens = jnp.full_like(empty.tokens, NOT_RUN)
    return empty._replace(tokens=tokens)
