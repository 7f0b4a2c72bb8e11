"""Packs int8 and 4-bit weights and their scales for the CPU matmul.

Packed codes are bytes [panels, steps, bytes per step], in the order documented in
`pallas_kernels/cpu/source/codes.h`. Scales are [panels, input groups, 32 columns].
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from pallas_kernels.cpu.library import load, target
from pallas_kernels.cpu.matmul import PANEL, depth, number, packed_shape

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32

COLUMNS_OF_PAIRS = PANEL // 4


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


def pack_codes(codes: Array, inputs: int, dtype: DTypeLike, gated: bool = False) -> Array:
    """Pack codes [*weights, inputs, outputs].

    8-bit codes are int8. 4-bit codes are unsigned (8 is zero) with two inputs per uint8, the first
    in the low bits.
    """
    load()
    *weights, _, outputs = codes.shape
    shape = packed_codes_shape(inputs, outputs, bits_of(codes), dtype, gated)
    call = jax.ffi.ffi_call(
        target("pack_codes"), jax.ShapeDtypeStruct((math.prod(weights), *shape), codes.dtype)
    )
    packed = call(
        codes.reshape(-1, *codes.shape[-2:]), inputs=np.int64(inputs), gated=bool(gated),
        number=number(dtype),
    )  # fmt: skip
    return packed.reshape(*weights, *shape)


def unpack_codes(
    packed: Array, inputs: int, outputs: int, dtype: DTypeLike, gated: bool = False
) -> Array:
    """Invert `pack_codes`."""
    *weights, panels, steps, _ = packed.shape
    deep, flat = depth(dtype), packed.reshape(-1, panels, steps, packed.shape[-1])
    if bits_of(packed) == 8:
        columns = flat.reshape(-1, panels, steps, PANEL, deep)
        codes = _matrix(columns, inputs, outputs, gated).reshape(*weights, inputs, outputs)
        return codes ^ jnp.int8(-128) if deep == 4 else codes  # unsigned then, around 128
    if deep == 2:  # [columns, k, 2 bytes, 2 halves], halves and bytes being columns apart
        halves = _halves(flat.reshape(-1, panels, steps, COLUMNS_OF_PAIRS, deep, 2))
        columns = jnp.moveaxis(halves.reshape(*halves.shape[:5], 4), -1, 3)
    else:
        columns = jnp.moveaxis(_halves(flat), -1, 3)
    columns = columns.reshape(-1, panels, steps, PANEL, deep)
    codes = _matrix(columns, inputs, outputs, gated)
    pairs = codes[:, 0::2] | codes[:, 1::2] << 4
    return pairs.reshape(*weights, inputs // 2, outputs)


def pack_scales(
    scales: Float[Array, "*weights groups outputs"], gated: bool = False
) -> Float32[Array, "*weights panels groups 32"]:
    """Reorder scales or zero points to the order of a weight's panels."""
    *weights, groups, outputs = scales.shape
    halves = 2 if gated else 1
    width, results = PANEL // halves, outputs // halves
    padded = scales.astype(jnp.float32).reshape(-1, groups, halves, results)
    padded = jnp.pad(padded, ((0, 0), (0, 0), (0, 0), (0, -results % width)))
    parts = padded.reshape(-1, groups, halves, padded.shape[-1] // width, width)
    return parts.transpose(0, 3, 1, 2, 4).reshape(*weights, parts.shape[3], groups, PANEL)


def unpack_scales(
    packed: Float32[Array, "*weights panels groups 32"], outputs: int, gated: bool = False
) -> Float32[Array, "*weights groups outputs"]:
    """Invert `pack_scales`."""
    *weights, panels, groups, _ = packed.shape
    columns = packed.reshape(-1, panels, groups, PANEL, 1)
    return _matrix(columns, groups, outputs, gated).reshape(*weights, groups, outputs)


def bits_of(codes: Array) -> int:
    """Bits per code: packed 4-bit codes are uint8, 8-bit codes int8."""
    return 8 if codes.dtype == jnp.int8 else 4


def _halves(pairs: Array) -> Array:
    """Split bytes into low and high nibble, in a new last dimension."""
    return jnp.stack((pairs & 15, pairs >> 4), -1)


def _matrix(columns: Array, inputs: int, outputs: int, gated: bool) -> Array:
    """[weights, panels, steps, 32, depth] to [weights, inputs, outputs]."""
    weights, panels, steps, _, deep = columns.shape
    halves = 2 if gated else 1
    width = PANEL // halves
    parts = columns.reshape(weights, panels, steps, halves, width, deep)
    whole = parts.transpose(0, 2, 5, 3, 1, 4).reshape(weights, steps * deep, halves, -1)
    return whole[:, :inputs, :, : outputs // halves].reshape(weights, inputs, outputs)
