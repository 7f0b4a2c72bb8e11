"""Matmuls with packed weights, fused with norm, bias, activation and residual.

Packed weights are [panels, steps, 32, depth]: panels of 32 columns and `depth` consecutive k (2 in
bfloat16, else 1), zero-padded. A panel of a gated weight holds 16 gate columns and the 16 up
columns that they multiply.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.cpu.library import ffi_call

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int

PANEL = 32
STORAGES = ("packed", "inputs_first", "outputs_first")
ACTIVATIONS = (None, "silu", "gelu_tanh", "gelu")
NORMS = (None, "rms", "layer")
GATES = (None, "halves", "pairs")
# Missing operands. Arrays of NumPy, as each jnp.zeros would be an operation to trace, lower and
# fold: a dozen per matmul, more than half of a step's operations.
NO_FLOATS: Any = np.zeros(0, np.float32)
NO_INTEGERS: Any = np.zeros(0, np.int32)
# The kernels' enum of dtypes; how many consecutive k are stored together, by default 1.
NUMBERS = {"bfloat16": 0, "float16": 1, "float32": 2, "int8": 3}
DEPTHS = {"bfloat16": 2, "int8": 4}
# Kinds of packed integers: unsigned ("uint"), with the middle code as 0 ("int"), or indices of a
# lookup table ("iq4").
CODES = (
    None, "int2", "int3", "int4", "int5", "int6", "int8", "uint2", "uint4", "uint5", "uint6", "iq4",
)  # fmt: skip


class FusedNorm(NamedTuple):
    """A norm over a row of x: `kind` is "rms" or "layer"."""

    kind: str
    weight: Float[Array, " inputs"]
    bias: Float[Array, " inputs"] | None = None
    eps: float = 1e-6
    offset: float = 0.0  # added to the weight


class Scales(NamedTuple):
    """Dequantization of a packed weight, per group of inputs: (integer - zero) * scale, or
    integer * scale - least.

    Scales and least values are float32 or float16, or themselves packed integers, multiples of a
    float16 unit that several groups share.
    """

    scale: Array  # [*weights, panels, groups, 32 numbers or their bytes]
    zero: Float[Array, "*weights panels groups 32"] | None
    group: int  # inputs that share a scale
    # What x is rounded to: bfloat16 or float32, as for a weight of this dtype, or int8 with a scale
    # per row: then dot products are of integers, exact before they are scaled.
    dtype: DTypeLike
    x_scale: Float[Array, " weights"] | None = None  # static scale of x, instead of one per row
    codes: str = "int8"
    least: Array | None = None  # as `scale`
    unit: int = 0  # inputs that share a unit
    scale_codes: str | None = None
    least_codes: str | None = None
    scale_unit: Float[Array, "*weights panels units 32"] | None = None
    least_unit: Float[Array, "*weights panels units 32"] | None = None


def depth(dtype: DTypeLike) -> int:
    """Consecutive k values stored together."""
    return DEPTHS.get(jnp.dtype(dtype).name, 1)


def number(dtype: DTypeLike) -> np.int32:
    """The kernels' enum value of a dtype."""
    return np.int32(NUMBERS[jnp.dtype(dtype).name])


def code_number(codes: str | None) -> np.int32:
    """The kernels' enum value of a kind of packed integers."""
    return np.int32(CODES.index(codes))


def packed_shape(
    inputs: int, outputs: int, dtype: DTypeLike, gated: bool = False
) -> tuple[int, int, int, int]:
    """Shape of a packed weight [inputs, outputs]."""
    results, width = (outputs // 2, PANEL // 2) if gated else (outputs, PANEL)
    return -(-results // width), -(-inputs // depth(dtype)), PANEL, depth(dtype)


def pack(
    weight: Float[Array, "*groups inputs outputs"],
    gated: bool = False,
    storage: str = "inputs_first",
) -> Array:
    """Pack a weight, or one per group; `storage` is its current layout. The first half of a gated
    weight's outputs are the gates."""
    groups, matrix = weight.shape[:-2], weight.shape[-2:]
    inputs, outputs = matrix if storage == "inputs_first" else matrix[::-1]
    shape = packed_shape(inputs, outputs, weight.dtype, gated)
    call = ffi_call("pack", jax.ShapeDtypeStruct((math.prod(groups), *shape), weight.dtype))
    packed = call(
        weight.reshape(-1, *matrix), gated=bool(gated), storage=np.int32(STORAGES.index(storage))
    )
    return packed.reshape(*groups, *shape)


def unpack(
    packed: Float[Array, "*groups panels steps columns depth"],
    inputs: int,
    outputs: int,
    gated: bool = False,
) -> Float[Array, "*groups inputs outputs"]:
    """Invert `pack`."""
    *groups, panels, steps, _, deep = packed.shape
    halves = 2 if gated else 1
    width = PANEL // halves
    parts = packed.reshape(-1, panels, steps, halves, width, deep).transpose(0, 2, 5, 3, 1, 4)
    whole = parts.reshape(-1, steps * deep, halves, panels * width)
    return whole[:, :inputs, :, : outputs // halves].reshape(*groups, inputs, outputs)


def columns(
    packed: Float[Array, "panels steps columns depth"], inputs: int, indices: Int[Array, "*some"]
) -> Float[Array, "*some inputs"]:
    """Gather columns of a packed weight, such as rows of an embedding, as float32."""
    panels = packed.shape[0]
    indices = jnp.clip(indices, 0, panels * PANEL - 1)
    found = packed[indices // PANEL, :, indices % PANEL]  # [*some, steps, depth]
    return found.reshape(*indices.shape, -1)[..., :inputs].astype(jnp.float32)


def matmul(
    x: Float[Array, "rows inputs"],
    weight: Array,
    outputs: int,
    *,
    storage: str = "packed",
    gate: str | None = None,
    activation: str | None = None,
    norm: FusedNorm | None = None,
    bias: Float[Array, "... outputs"] | None = None,
    addend: Float[Array, "rows outputs"] | None = None,
    residual: Float[Array, "rows outputs"] | None = None,
    positions: Int[Array, " rows"] | None = None,
    sizes: Int[Array, " groups"] | None = None,
    scales: Scales | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "rows results"]:
    """residual + activation(norm(x) @ weight + bias + addend), summed in float32; the result has
    `dtype`.

    x is float32 or bfloat16; for a bfloat16 weight it is rounded to bfloat16 after the norm. With
    a `gate`, outputs are (gate, up), as "halves" (packed with `gated`) or alternating "pairs", and
    the half as many results are activation(gate) * up. `storage` is the weight's layout: packed,
    [inputs, outputs] or [outputs, inputs]; results have the same bits. Rows at a position of -1 are
    padding: they cost nothing and give zeros. With `sizes` (rows per group), rows are sorted by
    group, and weight and bias have a leading axis of groups; rows after the last group are padding.
    With `scales`, the weight is packed integers (`pallas_kernels.cpu.codes`).
    """
    results = outputs // 2 if gate else outputs
    given = Scales(floats(None), None, 0, jnp.float32) if scales is None else scales
    call = ffi_call("matmul", jax.ShapeDtypeStruct((x.shape[0], results), jnp.dtype(dtype)))
    return call(
        x,
        weight,
        floats(None if norm is None else norm.weight),
        floats(None if norm is None else norm.bias),
        floats(bias),
        floats(addend),
        floats(residual),
        integers(positions),
        integers(sizes),
        given.scale,
        floats(given.scale_unit),
        floats(given.zero),
        floats(given.least),
        floats(given.least_unit),
        floats(given.x_scale),
        storage=np.int32(STORAGES.index(storage)),
        outputs=np.int64(outputs),
        gate=np.int32(GATES.index(gate)),
        activation=np.int32(ACTIVATIONS.index(activation)),
        norm=np.int32(NORMS.index(None if norm is None else norm.kind)),
        eps=np.float32(0 if norm is None else norm.eps),
        norm_offset=np.float32(0 if norm is None else norm.offset),
        group=np.int64(given.group),
        unit=np.int64(given.unit),
        number=number(given.dtype),
        codes=code_number(None if scales is None else given.codes),
        scale_codes=code_number(given.scale_codes),
        least_codes=code_number(given.least_codes),
    )


def normalize(
    x: Float[Array, "rows width"], norm: FusedNorm, positions: Int[Array, " rows"] | None = None
) -> Float[Array, "rows width"]:
    """Apply only the norm of `matmul`; float32."""
    call = ffi_call("normalize", jax.ShapeDtypeStruct(x.shape, jnp.float32))
    return call(
        x, norm.weight, floats(norm.bias), integers(positions),
        norm=np.int32(NORMS.index(norm.kind)), eps=np.float32(norm.eps),
        offset=np.float32(norm.offset),
    )  # fmt: skip


def floats(given: Array | None) -> Array:
    """Replace a missing operand by an empty float32 array."""
    return NO_FLOATS if given is None else given


def integers(given: Array | None) -> Array:
    """Replace a missing operand by an empty int32 array."""
    return NO_INTEGERS if given is None else given
