"""A step's input: a packed plan, and any number of companion inputs (embeddings, images, encoder).

Each kind of input adds what the model reads of it, so kinds combine without knowing each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jax import Array

from jengine.models.context import CrossReader, GivenEmbeddings
from jengine.runner.step.program import Program
from jengine.runner.step.step_input import StepInput

# Sections of the plan; None in a pipeline, whose stages run different plans.
Sections = StepInput | None


class Beside(NamedTuple):
    """What the model reads of the companion inputs."""

    given: tuple[GivenEmbeddings, ...] = ()  # later ones replace earlier ones
    mrope_positions: Array | None = None  # as in ImagesInput
    ahead: Array | None = None
    cross: CrossReader | None = None


class BesideInput(Protocol):
    """A companion input: a NamedTuple of arrays."""

    def added(self, found: Beside, inputs: Sections, program: Program, model: Any) -> Beside:
        """`found`, with this input's part added."""
        ...


class StepGiven(NamedTuple):
    packed: Any  # i32[...] the packed plan
    inputs: tuple[BesideInput, ...] = ()

    def beside(self, inputs: Sections, program: Program, model: Any) -> Beside:
        """What this model reads of all companion inputs. `inputs`: the plan's sections."""
        found = Beside()
        for one in self.inputs:
            found = one.added(found, inputs, program, model)
        return found


class EmbedsInput(NamedTuple):
    """Prompt embeddings of some tokens."""

    rows: Any  # f32[tokens, hidden] in place of the embedding lookup
    mask: Any  # bool[tokens] which tokens have one

    def added(self, found: Beside, inputs: Sections, program: Program, model: Any) -> Beside:
        given = GivenEmbeddings(self.rows, self.mask)
        return found._replace(given=(*found.given, given))


class ImagesInput(NamedTuple):
    """Image embeddings of some tokens, and their rotary positions."""

    kept: Any  # f32[rows, hidden] the encoder's array
    index: Any  # i32[tokens] each token's row of it, -1: none
    # i32[3, tokens] frame, row and column for mrope, -1: the token's position.
    mrope_positions: Any
    ahead: Any  # i32[tokens] number of later tokens of its image that a token attends to

    def added(self, found: Beside, inputs: Sections, program: Program, model: Any) -> Beside:
        kept = self.kept.at[self.index].get(mode="fill", fill_value=0)
        images = GivenEmbeddings(kept, self.index >= 0, is_final=True)
        return found._replace(
            given=(*found.given, images), mrope_positions=self.mrope_positions, ahead=self.ahead
        )
