"""Packs low-bit integer weights and their scales for the CPU matmul.

Packed codes are bytes [panels, steps, bytes per step], in bit planes, see
`pallas_kernels/cpu/source/code_forms.h`. Scales are [panels, input groups, 32 columns].
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.cpu.library import ffi_call
from pallas_kernels.cpu.matmul import PANEL, code_number, depth, number, packed_shape

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float

# Bits of the planes that codes are packed in, the lowest first: each divides a byte.
PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}


def packed_codes_shape(
    inputs: int, outputs: int, bits: int, dtype: DTypeLike, gated: bool = False
) -> tuple[int, int, int]:
    """Shape of the packed codes of a weight [inputs, outputs] that is multiplied in `dtype`, see
    `Scales`."""
    panels, steps, columns, deep = packed_shape(inputs, outputs, dtype, gated)
    return panels, steps, columns * deep * bits // 8


def scales_fit(group: int, inputs: int, dtype: DTypeLike) -> bool:
    """Whether the kernel supports this group size: no step may span two scales."""
    return group >= inputs or group % depth(dtype) == 0


def pack_codes(
    codes: Array, inputs: int, dtype: DTypeLike, gated: bool = False, kind: str | None = None
) -> Array:
    """Pack codes [*weights, inputs, outputs] of a kind in `matmul.CODES`, one per byte: int8 for
    "int8", else uint8.

    Without a kind, int8 codes are "int8", and uint8 codes "int4" with two inputs per byte, the
    first in the low bits.
    """
    in_pairs = kind is None and codes.dtype == jnp.uint8
    kind = kind or ("int4" if in_pairs else "int8")
    *weights, _, outputs = codes.shape
    shape = packed_codes_shape(inputs, outputs, bits_of(kind), dtype, gated)
    call = ffi_call("pack_codes", jax.ShapeDtypeStruct((math.prod(weights), *shape), codes.dtype))
    packed = call(
        codes.reshape(-1, *codes.shape[-2:]), inputs=np.int64(inputs), gated=bool(gated),
        number=number(dtype), codes=code_number(kind), in_pairs=in_pairs,
    )  # fmt: skip
    return packed.reshape(*weights, *shape)


def unpack_codes(
    packed: Array,
    inputs: int,
    outputs: int,
    dtype: DTypeLike,
    gated: bool = False,
    kind: str | None = None,
) -> Array:
    """Invert `pack_codes`."""
    *weights, panels, steps, _ = packed.shape
    deep, flat = depth(dtype), packed.reshape(-1, panels, steps, packed.shape[-1])
    in_pairs = kind is None and packed.dtype == jnp.uint8
    bits, begin, codes = bits_of(kind or ("int4" if in_pairs else "int8")), 0, None
    for first, own in zip((0, PLANES[bits][0]), PLANES[bits], strict=False):
        end = begin + PANEL * deep * own // 8
        plane = _plane(flat[..., begin:end], own, deep)
        codes, begin = plane if codes is None else codes | plane << first, end
    assert codes is not None, "there is a plane"
    codes = _matrix(codes, inputs, outputs, gated)
    if in_pairs:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    elif bits == 8 and deep == 4:
        codes = codes ^ jnp.int8(-128)  # packed as unsigned, with an offset of 128
    return codes.reshape(*weights, -1, outputs)


def _plane(packed: Array, bits: int, deep: int) -> Array:
    """Unpack one bit plane to [..., 32, depth]. Its containers are bytes, or two bytes at a depth
    of 2."""
    if bits == 8:
        return packed.reshape(*packed.shape[:-1], PANEL, deep)
    width = 2 if deep == 2 else 1
    apart = packed.shape[-1] // (width * deep)
    parts = packed.reshape(*packed.shape[:-1], apart, deep, width)
    each = [parts >> jnp.uint8(shift) & jnp.uint8(2**bits - 1) for shift in range(0, 8, bits)]
    codes = jnp.stack(each, -1)  # [..., columns, k, bytes, codes in a byte]
    columns = jnp.moveaxis(codes.reshape(*parts.shape[:-1], -1), -1, -3)
    return columns.reshape(*packed.shape[:-1], PANEL, deep)


def pack_scales(
    scales: Float[Array, "*weights groups outputs"], gated: bool = False
) -> Float[Array, "*weights panels groups 32"]:
    """Reorder scales or zero points to the order of a weight's panels."""
    *weights, groups, outputs = scales.shape
    halves = 2 if gated else 1
    width, results = PANEL // halves, outputs // halves
    padded = scales.reshape(-1, groups, halves, results)
    padded = jnp.pad(padded, ((0, 0), (0, 0), (0, 0), (0, -results % width)))
    parts = padded.reshape(-1, groups, halves, padded.shape[-1] // width, width)
    return parts.transpose(0, 3, 1, 2, 4).reshape(*weights, parts.shape[3], groups, PANEL)


def unpack_scales(
    packed: Float[Array, "*weights panels groups 32"], outputs: int, gated: bool = False
) -> Float[Array, "*weights groups outputs"]:
    """Invert `pack_scales`."""
    *weights, panels, groups, _ = packed.shape
    columns = packed.reshape(-1, panels, groups, PANEL, 1)
    return _matrix(columns, groups, outputs, gated).reshape(*weights, groups, outputs)


def bits_of(kind: str) -> int:
    """Bits per code, the last digit of the kind's name."""
    return int(kind[-1])


def _matrix(columns: Array, inputs: int, outputs: int, gated: bool) -> Array:
    """[weights, panels, steps, 32, depth] to [weights, inputs, outputs]."""
    weights, panels, steps, _, deep = columns.shape
    halves = 2 if gated else 1
    width = PANEL // halves
    parts = columns.reshape(weights, panels, steps, halves, width, deep)
    whole = parts.transpose(0, 2, 5, 3, 1, 4).reshape(weights, steps * deep, halves, -1)
    return whole[:, :inputs, :, : outputs // halves].reshape(weights, inputs, outputs)
