"""Reads and writes quantized KV heads (one byte per number) inside Triton kernels.

In: arrays in the layout of `pallas_kernels.layout`. Out: values for tensor cores and a scale per
token and head, applied to scores and weights. Needs no FP8 support of the device.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What FP8's numbers are larger by where their bits are read as those of float16.
FP8_AS_HALF = tl.constexpr(256.0)
# Adding and subtracting it rounds a float32 below 2**22 to the nearest integer, ties to even.
ROUNDING = tl.constexpr(12582912.0)
SMALLEST_SCALE = tl.constexpr(1e-12)
LARGEST_INT8 = tl.constexpr(127.0)
LARGEST_FP8 = tl.constexpr(448.0)
# The smallest normal number of E4M3; those below are multiples of 2**-9.
LEAST_NORMAL = tl.constexpr(0.015625)
PER_UNIT = tl.constexpr(512.0)
# The distance of the exponents of float32 and E4M3, and the mantissa bits that are dropped.
REBIASED = tl.constexpr((127 - 7) << 3)


@triton.jit
def as_multiplied(x, kind: tl.constexpr, CODES: tl.constexpr):
    """Cast queries to the dtype in which they are multiplied by keys of this cache dtype."""
    if CODES == "none":
        return x.to(kind)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def load_heads(plane_ptr, places, inside, lane, HEAD_DIM: tl.constexpr, CODES: tl.constexpr):
    """Load heads [tokens, lanes] and their scales [1, tokens] (1.0 for an unquantized cache)."""
    stored = inside[:, None] & (lane < HEAD_DIM)[None, :]
    found = tl.load(plane_ptr + places[:, None] + lane[None, :], mask=stored, other=0)
    if CODES == "none":
        return found, 1.0
    else:
        scales = load_scales(plane_ptr, places, inside, HEAD_DIM)
        if CODES == "fp8":
            bits = found.to(tl.uint16)
            half = ((bits & 0x7F) << 7) | ((bits & 0x80) << 8)
            numbers = half.to(tl.uint16).to(tl.float16, bitcast=True)
            return numbers.to(tl.float32).to(tl.bfloat16), scales * FP8_AS_HALF
        else:
            return found.to(tl.float32).to(tl.bfloat16), scales


@triton.jit
def load_scales(plane_ptr, places, inside, HEAD_DIM: tl.constexpr):
    """Load the scales [1, tokens]: bfloat16 stored little-endian after the codes."""
    byte = tl.arange(0, 2)
    where = plane_ptr + places[:, None] + HEAD_DIM + byte[None, :]
    found = tl.load(where, mask=inside[:, None] & (byte >= 0)[None, :], other=0)
    bits = found.to(tl.int32) & 0xFF
    shifted = bits << (byte * 8 + 16)[None, :]
    return tl.sum(shifted, 1).to(tl.float32, bitcast=True)[None, :]


@triton.jit
def store_heads(
    target, heads, kept, lane, HEAD_DIM: tl.constexpr, kind: tl.constexpr, CODES: tl.constexpr
):
    """Quantize and store float32 heads [rows, lanes] where `kept`. `target` [rows, 1] points to
    each; lanes beyond the head must be zero."""
    inside = kept[:, None] & (lane < HEAD_DIM)[None, :]
    if CODES == "none":
        tl.store(target + lane[None, :], heads.to(kind), mask=inside)
    else:
        largest = LARGEST_FP8 if CODES == "fp8" else LARGEST_INT8
        exact = tl.maximum(tl.max(tl.abs(heads), 1) / largest, SMALLEST_SCALE)
        bits = (exact.to(tl.int32, bitcast=True) + 0xFFFF) >> 16  # rounded up
        scale = (bits << 16).to(tl.float32, bitcast=True)
        units = heads / scale[:, None]
        codes = fp8_bits(units) if CODES == "fp8" else (units + ROUNDING) - ROUNDING
        tl.store(target + lane[None, :], codes.to(tl.int32).to(kind), mask=inside)
        byte = tl.arange(0, 2)
        parts = (bits[:, None] >> (byte * 8)[None, :]) & 0xFF
        inside = kept[:, None] & (byte >= 0)[None, :]
        tl.store(target + HEAD_DIM + byte[None, :], parts.to(kind), mask=inside)


@triton.jit
def fp8_bits(x):
    """Bits of x rounded to E4M3, ties to even, for |x| up to 448."""
    size = tl.abs(x)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - REBIASED
    small = ((size * PER_UNIT + ROUNDING) - ROUNDING).to(tl.int32)
    found = tl.where(size < LEAST_NORMAL, small, normal)
    return found | tl.where(x < 0, 0x80, 0)
