"""Quantized weights in the kernels' layout, and their dequantization.

`codes` is [..., columns, bytes]: a column's inputs are contiguous. `scales` and `zeros` are [...,
input groups, columns], for `group` inputs each. Leading dimensions are matrices, such as experts.
4-bit codes are stored in blocks of `2 * part` inputs: a byte holds an input of the first half in
its low bits and the input `part` later in its high bits, so that a kernel unpacks both halves
without moving data between threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, UInt8

Kind = Literal["int4", "int8", "fp4", "fp8"]
FOUR_BITS = ("int4", "fp4")
# Implied zero of codes without `zeros`: 4-bit integers are stored unsigned.
MIDDLE = {"int4": 8, "int8": 0, "fp4": 0, "fp8": 0}
# Offset of stored zeros: code - (zero - offset).
ZERO_OFFSET = {"int4": 0, "int8": 128}
# Inputs per dot of a kernel, the most and the least.
LARGEST_PART, SMALLEST_PART = 64, 16
# Scales of FP4 are powers of two: the bits of a float32 above its fraction.
EXPONENT_BITS = 23
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def part_for(kind: Kind, inputs: int, group: int) -> int | None:
    """Inputs per dot of a kernel, all with one scale; None if the shape is unsupported."""
    part = LARGEST_PART
    while part >= SMALLEST_PART:
        block = 2 * part if kind in FOUR_BITS else part
        if inputs % block == 0 and (group % part == 0 or group >= inputs):
            return part
        part //= 2
    return None


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["codes", "scales", "zeros"],
    meta_fields=["kind", "group", "part", "dtype"],
)
@dataclass(frozen=True)
class CodedWeight:
    """Quantized matrices, (code - zero) * scale; matmul operands are rounded to `dtype`."""

    codes: Array  # int8 of "int8", float8_e4m3fn of "fp8", uint8 pairs of four bits
    scales: Array  # of any floating type, but of "fp4": uint8 exponents
    kind: Kind
    group: int  # inputs
    part: int  # inputs, see `part_for`
    dtype: np.dtype
    zeros: Array | None = field(default=None)  # uint8, or float16

    @property
    def depth(self) -> int:
        """Number of inputs."""
        return self.codes.shape[-1] * (2 if self.kind in FOUR_BITS else 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape when dequantized: [..., inputs, columns]."""
        return (*self.codes.shape[:-2], self.depth, self.codes.shape[-2])

    def plain(self) -> Float[Array, "... inputs columns"]:
        """Dequantize to `dtype`."""
        return self.exact().astype(self.dtype)

    def exact(self) -> Float32[Array, "... inputs columns"]:
        """Dequantize to float32."""
        numbers = jnp.swapaxes(numbers_of(self.codes, self.kind, self.part), -1, -2)
        inputs = numbers.shape[-2]
        if self.zeros is not None:
            zeros = self.zeros.astype(jnp.float32) - ZERO_OFFSET[self.kind]
            numbers = numbers - spread(zeros, self.group, inputs)
        else:
            numbers = numbers - MIDDLE[self.kind]
        scales = powers_of_two(self.scales) if self.kind == "fp4" else self.scales
        return numbers * spread(scales.astype(jnp.float32), self.group, inputs)


def numbers_of(codes: Array, kind: Kind, part: int) -> Float32[Array, "... columns inputs"]:
    """Decode codes to float32, before zero points and scales."""
    if kind not in FOUR_BITS:
        return codes.astype(jnp.float32)
    found = unpacked(codes, part)
    if kind == "int4":
        return found.astype(jnp.float32)
    table = jnp.asarray((*FP4, *(-value for value in FP4)), jnp.float32)
    return table[found]


def spread(one: Array, group: int, inputs: int) -> Array:
    """Repeat a value per group for each of the group's inputs."""
    if one.shape[-2] == 1:
        return jnp.broadcast_to(one, (*one.shape[:-2], inputs, one.shape[-1]))
    return jnp.repeat(one, group, -2)[..., :inputs, :]


def packed(codes: UInt8[Array, "... columns inputs"], part: int) -> UInt8[Array, "..."]:
    """Pack 4-bit codes, two per byte, in blocks of two parts."""
    blocks = codes.reshape(*codes.shape[:-1], -1, 2, part)
    made = blocks[..., 0, :] | blocks[..., 1, :] << 4
    return made.reshape(*codes.shape[:-1], -1)


def unpacked(codes: UInt8[Array, "... columns bytes"], part: int) -> UInt8[Array, "..."]:
    """Invert `packed`."""
    blocks = codes.reshape(*codes.shape[:-1], -1, part)
    both = jnp.stack((blocks & 15, blocks >> 4), -2)
    return both.reshape(*codes.shape[:-1], -1)


def exponents(scales: Float32[Array, "..."]) -> UInt8[Array, "..."]:
    """Exponent bytes (E8M0) of power-of-two scales."""
    bits = jax.lax.bitcast_convert_type(scales.astype(jnp.float32), jnp.uint32)
    return (bits >> EXPONENT_BITS).astype(jnp.uint8)


def powers_of_two(stored: UInt8[Array, "..."]) -> Float32[Array, "..."]:
    """Invert `exponents`."""
    bits = stored.astype(jnp.uint32) << EXPONENT_BITS
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
