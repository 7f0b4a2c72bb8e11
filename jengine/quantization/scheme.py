"""Interface of weight schemes, and descriptions of weights.

A scheme defines the tensors a checkpoint holds (declared), the arrays a step takes (prepared), the
conversion between them, and the matmul. Checkpoints, trainers, `save` and `update_params` see only
declared tensors. Schemes must not know models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
from jax import Array

from jengine.layers.initializer import Initializer
from jengine.layers.linear import add_bias
from jengine.layers.mlp import ACTIVATIONS, gated
from jengine.layers.moe import Picked, group_of_rows, known_groups, mix_experts
from jengine.layers.norm import RowNorm
from jengine.quantization.expert_adapters import ExpertAdapters

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

Axes = tuple[str | None, ...]
Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class WeightShape:
    """A weight [groups, inputs, outputs] without data; `x @ weight` contracts all inputs.

    `groups`: one matrix per group, such as per expert. `outputs_first`: laid out as [outputs,
    inputs], as a tied embedding. `gated`: outputs are (2, n), gate and up.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    axes: Axes  # one logical axis name per dimension
    groups: int | None = None
    outputs_first: bool = False
    gated: bool = False
    # Results go only into attention or the next matmul, which round them anyway.
    inner: bool = False
    # Logical axes of x's input dimensions, where x may be sharded further than the weight.
    x_axes: Axes | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions in memory order."""
        matrix = (self.outputs, self.inputs) if self.outputs_first else (self.inputs, self.outputs)
        return (*(() if self.groups is None else (self.groups,)), *matrix[0], *matrix[1])

    @property
    def matrix(self) -> tuple[int, int]:
        """(inputs, outputs), each flattened."""
        return math.prod(self.inputs), math.prod(self.outputs)


@dataclass(frozen=True)
class TensorSpec:
    """Shape, axes, dtype and initialiser of one array of a weight."""

    shape: tuple[int, ...]
    axes: Axes
    dtype: Any
    init: Initializer


Specs = Mapping[str, TensorSpec]


class Around(NamedTuple):
    """Norm before a matmul, and bias, activation and residual after it, for fusing."""

    norm: RowNorm | None = None
    bias: Array | None = None  # [*outputs]
    activation: str | None = None  # of all outputs, or of the gate of a gated weight
    residual: Array | None = None
    # i32 per row of x; -1: padding, whose results are never used.
    positions: Array | None = None
    # f32 [*tokens, *outputs]: LoRA update of the matmul, set if an activation follows.
    addend: Array | None = None


class Stored(NamedTuple):
    """A weight's prepared arrays, and its bias."""

    shape: WeightShape
    tensors: Tensors
    bias: Array | None = None  # [groups, *outputs]
    adapters: ExpertAdapters | None = None


class WeightScheme(Protocol):
    """Storage and matmul of one kind of weight. Hashable and stateless.

    Tensors are named within their `Linear`: "weight", "scale", ... Defaults: declared arrays are
    used as they are, nothing is fused, and XLA computes norms.
    """

    @property
    def takes_declared(self) -> bool:
        """Whether steps use the declared arrays, without a copy."""
        return True

    def declared(self, weight: WeightShape, dtype: Any, init: Initializer) -> Specs:
        """Tensors of a checkpoint; `dtype` is the model's."""
        ...

    def prepared(self, weight: WeightShape, dtype: Any) -> Specs:
        return self.declared(weight, dtype, Initializer())

    def prepare(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Convert declared to prepared tensors; traceable."""
        return tensors

    def restore(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Convert prepared to declared tensors; the exact inverse unless quantized at load."""
        return tensors

    def unpack(self, weight: WeightShape, tensors: Tensors) -> Tensors:
        """Convert prepared tensors of a quantized weight to those of `QuantizedWeights`."""
        return tensors

    def multiply(
        self, weight: WeightShape, x: Float[Array, "*tokens inputs"], tensors: Tensors
    ) -> Float32[Array, "..."]:
        """x with flattened inputs to [*tokens, *outputs]."""
        ...

    def lookup(
        self, weight: WeightShape, indices: Int[Array, "*tokens"], tensors: Tensors
    ) -> Float32[Array, "*tokens inputs"]:
        """Rows of a weight laid out as [outputs, inputs], such as an embedding."""
        ...

    def normalize(self, norm: RowNorm, x: Float[Array, "*shape"]) -> Float32[Array, "*shape"]:
        """A norm alone, bit-equal to the one in `apply`."""
        return norm(x)

    def softmax(self, x: Float[Array, "rows width"]) -> Float32[Array, "rows width"]:
        """Softmax per row, such as a router's."""
        return jax.nn.softmax(x)

    def apply(self, weight: WeightShape, x: Array, tensors: Tensors, around: Around) -> Array:
        """residual + activation(norm(x) @ weight + addend + bias), float32 unless the weight is
        `inner`."""
        normed = x if around.norm is None else self.normalize(around.norm, x)
        return finished(weight, self.multiply(weight, normed, tensors), around)

    def multiply_groups(
        self,
        weight: WeightShape,
        x: Float[Array, "rows inputs"],
        tensors: Tensors,
        sizes: Int[Array, " groups"],
        activation: str | None = None,
    ) -> Float32[Array, "rows ..."]:
        """Grouped matmul of x, sorted by group with `sizes` rows each, to [rows, *outputs].

        With an activation, outputs are (n, 2) pairs of gate and up and the result is
        activation(gate) * up, [rows, n]. Rows after the last group are padding.
        """
        ...

    def mix_experts(
        self,
        gate_up: Stored,
        down: Stored,
        x: Float[Array, "tokens hidden"],
        picked: Picked,
        activation: str,
        live: Int[Array, " tokens"] | None,
    ) -> Float32[Array, "tokens hidden"]:
        """Weighted sum of the gated MLPs of each token's experts; zero where `live` is -1. An
        expert of -1 adds nothing.

        Both weights must have this scheme, with one group per expert. Includes biases and the
        adapters of tokens' slots. The default is two calls of `multiply_groups`.
        """
        return mixed(self, gate_up, down, x, picked, activation, live)


def finished(weight: WeightShape, y: Array, around: Around) -> Array:
    """Apply bias, activation and residual to a matmul's result y [*tokens, *outputs]."""
    _, bias, activation, residual, _, addend = around
    if bias is not None:
        y = add_bias(y, bias)
    if addend is not None:
        y = y + addend.astype(y.dtype)
    if activation is not None:
        y = gated(y, activation) if weight.gated else ACTIVATIONS[activation](y)
    return y if residual is None else residual + y


def mixed(
    scheme: WeightScheme,
    gate_up: Stored,
    down: Stored,
    x: Array,
    picked: Picked,
    activation: str,
    live: Array | None,
) -> Array:
    """`WeightScheme.mix_experts` by two calls of `multiply_groups`."""
    assert gate_up.shape.groups is not None, "the weights of experts have groups"

    def first(x: Array, sizes: Array, tokens: Array) -> Array:
        if gate_up.bias is None and gate_up.adapters is None:
            return scheme.multiply_groups(gate_up.shape, x, gate_up.tensors, sizes, activation)
        return gated(with_addends(gate_up, x, sizes, tokens), activation, axis=-1)

    def second(x: Array, sizes: Array, tokens: Array) -> Array:
        return with_addends(down, x, sizes, tokens)

    def with_addends(weight: Stored, x: Array, sizes: Array, tokens: Array) -> Array:
        made = scheme.multiply_groups(weight.shape, x, weight.tensors, sizes)
        if weight.bias is not None:
            made = made + weight.bias.astype(made.dtype)[group_of_rows(sizes, x.shape[0])]
        if weight.adapters is None or picked.slots is None:
            return made
        experts = known_groups(sizes, x.shape[0])
        return weight.adapters.added(x, picked.slots[tokens], experts, made)

    weights, experts, _ = picked
    return mix_experts(x, weights, experts, gate_up.shape.groups, first, second, live)
