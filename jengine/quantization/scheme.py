"""The protocol of a weight scheme, and what describes a weight to it.

A scheme says which tensors a checkpoint holds for a weight (declared), which arrays the step takes
(prepared), how one becomes the other, and how the prepared arrays multiply. Checkpoints, trainers,
`save` and `update_params` see declared tensors only. Schemes must not know models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from jax import Array

from jengine.layers.initializer import Initializer

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

Axes = tuple[str | None, ...]
Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class WeightShape:
    """A weight [groups, inputs, outputs] without data: `x @ weight` contracts all its inputs.

    With `groups` it is one matrix per group, such as one per expert. With `outputs_first` it is
    laid out as [outputs, inputs], such as an embedding that is also the output head.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: Axes  # one logical axis name per dimension
    groups: int | None = None
    outputs_first: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions in memory order."""
        matrix = (self.outputs, self.inputs) if self.outputs_first else (self.inputs, self.outputs)
        return (*(() if self.groups is None else (self.groups,)), *matrix[0], *matrix[1])

    @property
    def matrix(self) -> tuple[int, int]:
        """Inputs and outputs as one dimension each."""
        return math.prod(self.inputs), math.prod(self.outputs)


@dataclass(frozen=True)
class TensorSpec:
    """One array of a weight, without data."""

    shape: tuple[int, ...]
    axes: Axes
    dtype: Any
    init: Initializer


Specs = Mapping[str, TensorSpec]


class WeightScheme(Protocol):
    """How weights of one kind are stored and multiplied. Hashable, without state.

    Tensors of a weight are named inside their `Linear`: "weight", "scales", ...
    """

    @property
    def takes_declared(self) -> bool:
        """Whether the step takes the declared arrays themselves, so that nothing is copied."""
        ...

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        """The tensors of a checkpoint; `dtype` is that of the model's other parameters."""
        ...

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        """The arrays that the step takes."""
        ...

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Declared to prepared, as a traceable function."""
        ...

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Prepared to declared, exactly as they were."""
        ...

    def multiply(
        self, weight: WeightShape, x: Float[Array, "*tokens inputs"], tensors: Tensors
    ) -> Float32[Array, "..."]:
        """x, whose inputs are one dimension, to [*tokens, *outputs]."""
        ...

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Float[Array, "rows inputs"],
        tensors: Tensors,
        sizes: Int[Array, " groups"],
    ) -> Float32[Array, "rows ..."]:
        """x, sorted by group with `sizes` rows each, to [rows, *outputs]."""
        ...
