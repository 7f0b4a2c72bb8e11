"""What a step is given: a packed plan, and any number of inputs beside it.

Each kind of input says what the model reads of it, so kinds combine without knowing each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jax import Array

from jengine.models.context import CrossReader, GivenEmbeddings
from jengine.runner.step.program import Program
from jengine.runner.step.step_input import StepInput

# Sections of the plan; None in a pipeline, whose stages have those of different plans.
Sections = StepInput | None


class Beside(NamedTuple):
    """What the model reads of the inputs beside a plan."""

    given: tuple[GivenEmbeddings, ...] = ()  # later ones replace earlier ones
    mrope_positions: Array | None = None  # as in ImagesInput
    ahead: Array | None = None
    cross: CrossReader | None = None


class BesideInput(Protocol):
    """One input beside a plan: a NamedTuple of arrays."""

    def added(self, found: Beside, inputs: Sections, program: Program, model: Any) -> Beside:
        """What the model reads, with this input's part."""
        ...


class StepGiven(NamedTuple):
    """What a step is given."""

    packed: Any  # i32[...] the packed plan
    inputs: tuple[BesideInput, ...] = ()

    def beside(self, inputs: Sections, program: Program, model: Any) -> Beside:
        """What this model reads beside the plan, whose sections are `inputs`."""
        found = Beside()
        for one in self.inputs:
            found = one.added(found, inputs, program, model)
        return found


class EmbedsInput(NamedTuple):
    """Embeddings that stand for some tokens of prompts."""

    rows: Any  # f32[tokens, hidden] as the embedding would give them
    mask: Any  # bool[tokens] which tokens have one

    def added(self, found: Beside, inputs: Sections, program: Program, model: Any) -> Beside:
        given = GivenEmbeddings(self.rows, self.mask)
        return found._replace(given=(*found.given, given))


class ImagesInput(NamedTuple):
    """The encoder's outputs that some tokens of prompts stand for."""

    kept: Any  # f32[rows, hidden] the encoder's array
    index: Any  # i32[tokens] which of its rows each token stands for, -1: none
    # i32[3, tokens] by which frame, row and column a token is rotated, -1: by its position.
    mrope_positions: Any
    ahead: Any  # i32[tokens] to how many later tokens of its image a token attends

    def added(self, found: Beside, inputs: Sections, program: Program, model: Any) -> Beside:
        kept = self.kept.at[self.index].get(mode="fill", fill_value=0)
        images = GivenEmbeddings(kept, self.index >= 0, is_final=True)
        return found._replace(
            given=(*found.given, images), mrope_positions=self.mrope_positions, ahead=self.ahead
        )
