"""The second half of a step that is split: logits that the host has changed, to tokens.

In: the state after the first half, its logits and positions, and the changed logits. Out: as of a
whole step. Must not know who has changed the logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jax import Array

from jengine.outputs import StepOutput
from jengine.runner.step.heads import sample_slots
from jengine.runner.step.program import Program
from jengine.runner.step.state import StepState
from jengine.runner.step.step_input import StepInput

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32


class Halves(NamedTuple):
    """The two compiled programs of a split step."""

    first: object  # jax.stages.Compiled
    second: object


def second_half(
    state: StepState,
    packed: Array,
    logits: Float32[Array, "slots vocab"],
    positions: Int32[Array, " slots"],
    changed: Float32[Array, "slots vocab"],
    *,
    program: Program,
) -> tuple[StepState, StepOutput]:
    """Sample from the changed logits; raw log-probabilities are those of the model's own."""
    inputs = StepInput.over(packed, program.bucket, program.shapes)
    sampling = inputs.sampling._replace(positions=positions)
    state, found = sample_slots(logits, sampling, None, state, program, changed)
    return state, StepOutput(**found)
