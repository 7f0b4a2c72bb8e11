"""A burst: the decode step run several times in one call, each run on the tokens of the one before.

In and out like the step, but that what it leaves has a leading axis: one entry a run. It ends early
when every row has sampled a token that ends it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.runner.leaves import Leaves
from jengine.runner.state import StepState
from jengine.runner.step import DeviceOutput, Program, run
from jengine.runner.step_input import StepInput

# For runs that did not take place. The scheduler takes it for a failure where it still wants a
# token, which by then no row does.
NOT_RUN = -1


class Progress(NamedTuple):
    """What one run hands to the next."""

    count: Array  # i32[] runs so far
    goes_on: Array  # bool[S] rows that have not sampled an ending token
    state: StepState
    outputs: DeviceOutput  # of all runs


def multi_step(
    leaves: Leaves, state: StepState, packed: Array, *, program: Program
) -> tuple[StepState, DeviceOutput]:
    """Run the packed plan as often as it says."""
    model = program.rebuild(leaves)
    inputs = StepInput.over(packed, program.bucket, program.shapes)
    rows = inputs.sampling.rows
    last = state.last_token.at[rows].get(mode="clip")

    def wanted(progress: Progress) -> Array:
        return (progress.count < inputs.repeats[0]) & jnp.any(progress.goes_on)

    def once(progress: Progress) -> Progress:
        count = progress.count
        state, output = run(model, advanced(inputs, count), progress.state, program)
        outputs = jax.tree.map(
            lambda all_runs, own: lax.dynamic_update_index_in_dim(all_runs, own, count, 0),
            progress.outputs,
            output,
        )
        goes_on = progress.goes_on & ~ended(output.sampled.tokens, inputs.endings)
        return Progress(count + 1, goes_on, state, outputs)

    begin = Progress(
        jnp.int32(0),
        (rows < program.shapes.max_rows) & ~ended(last, inputs.endings),
        state,
        nothing(jax.eval_shape(lambda: run(model, inputs, state, program)[1]), program),
    )
    end = lax.while_loop(wanted, once, begin)
    return end.state, end.outputs


def advanced(inputs: StepInput, count: Array) -> StepInput:
    """The inputs of a later run: every row is so many tokens further."""
    positions = jnp.where(inputs.positions >= 0, inputs.positions + count, inputs.positions)
    sampling = inputs.sampling._replace(positions=inputs.sampling.positions + count)
    return inputs._replace(positions=positions, sampling=sampling)


def ended(tokens: Array, endings: Array) -> Array:
    """bool [S]: whether a token ends its row, or is none because the logits were not finite."""
    return (tokens < 0) | jnp.any(tokens[:, None] == endings, axis=1)


def nothing(output: DeviceOutput, program: Program) -> DeviceOutput:
    """What a burst leaves before its first run."""
    most = program.bucket.repeats
    empty = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), output)
    tokens = jnp.full_like(empty.sampled.tokens, NOT_RUN)
    return empty._replace(sampled=empty.sampled._replace(tokens=tokens))
