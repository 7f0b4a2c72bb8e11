"""Inner loops of quantized matmuls, inside Triton kernels.

Tiles are [columns, rows]: the weight is the first operand of the dot, because Hopper's tensor cores
read that one from registers, where codes are dequantized, and because few rows make a narrow side.
Only `float8_sum` needs FP8 support of the device.
"""

from __future__ import annotations

import triton
import triton.language as tl

# E2M1 and E4M3 numbers, relative to their bits read as float16.
FP4_AS_HALF = tl.constexpr(16384.0)
FP8_AS_HALF = tl.constexpr(256.0)


@triton.jit
def coded_sum(
    x_ptr, x_row, real, weight_ptr, scale_ptr, zero_ptr, column, inside, first, last,
    DEPTH: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, PART: tl.constexpr,
    KIND: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """(x @ weight) transposed, [columns, rows], dequantizing in registers.

    `x_row` [rows] are offsets of rows of x. `first` and `last` count blocks of the weight: two
    parts of 4-bit codes or one part of bytes, as in `coded.CodedWeight`.
    """
    PAIRED: tl.constexpr = KIND == "int4" or KIND == "fp4"
    INPUTS: tl.constexpr = 2 * PART if PAIRED else PART  # of a block
    BYTES: tl.constexpr = DEPTH // 2 if PAIRED else DEPTH
    at = tl.arange(0, PART)
    codes_at = weight_ptr + column.to(tl.int64)[:, None] * BYTES + (first * PART + at)[None, :]
    x_at = x_ptr + x_row[None, :] + (first * INPUTS + at)[:, None]
    total = tl.zeros([column.shape[0], x_row.shape[0]], tl.float32)
    for block in range(first, last):
        codes = tl.load(codes_at, mask=inside[:, None], other=0)
        group = block * INPUTS // GROUP * COLUMNS
        if PAIRED:
            x = tl.load(x_at, mask=real[None, :], other=0.0)
            low = scaled(
                codes & 15, scale_ptr + group, zero_ptr + group, column, inside, KIND, ZEROS
            )
            total = tl.dot(low.to(x.dtype), x, total)
            x = tl.load(x_at + PART, mask=real[None, :], other=0.0)
            group = (block * INPUTS + PART) // GROUP * COLUMNS
            high = scaled(
                codes >> 4, scale_ptr + group, zero_ptr + group, column, inside, KIND, ZEROS
            )
            total = tl.dot(high.to(x.dtype), x, total)
        else:
            x = tl.load(x_at, mask=real[None, :], other=0.0)
            numbers = scaled(
                codes, scale_ptr + group, zero_ptr + group, column, inside, KIND, ZEROS
            )
            total = tl.dot(numbers.to(x.dtype), x, total)
        codes_at += PART
        x_at += INPUTS
    return total


@triton.jit
def scaled(
    codes, scale_ptr, zero_ptr, column, inside, KIND: tl.constexpr, ZEROS: tl.constexpr
):  # fmt: skip
    """(code - zero) * scale in float32, for one group's scales and zeros."""
    numbers = decoded(codes, KIND)
    scale = tl.load(scale_ptr + column, mask=inside, other=0)
    if KIND == "fp4":
        scale = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    if ZEROS:
        zero = tl.load(zero_ptr + column, mask=inside, other=0).to(tl.float32)
        if KIND == "int8":
            zero -= 128.0
        numbers = numbers - zero[:, None]
    elif KIND == "int4":
        numbers = numbers - 8.0
    return numbers * scale[:, None]


@triton.jit
def decoded(codes, KIND: tl.constexpr):
    """Decode codes, before zeros and scales."""
    if KIND == "fp4":
        bits = codes.to(tl.uint16)
        half = ((bits & 7) << 9) | ((bits & 8) << 12)
        return half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * FP4_AS_HALF
    elif KIND == "fp8":
        bits = codes.to(tl.uint16)  # stored as bytes
        half = ((bits & 0x7F) << 7) | ((bits & 0x80) << 8)
        return half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * FP8_AS_HALF
    else:
        return codes.to(tl.float32)


@triton.jit
def float8_sum(
    x_ptr, x_row, x_scale_ptr, x_scale_row, real, weight_ptr, scale_ptr, column, inside,
    first, last, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """(x @ weight) transposed, for FP8 operands: per input group one dot, times the scales of its
    rows and columns. `x_scale_row` [rows] are offsets of the scales of x's rows."""
    at = tl.arange(0, GROUP)
    weight_at = weight_ptr + column.to(tl.int64)[:, None] * DEPTH + (first * GROUP + at)[None, :]
    x_at = x_ptr + x_row[None, :] + (first * GROUP + at)[:, None]
    total = tl.zeros([column.shape[0], x_row.shape[0]], tl.float32)
    for group in range(first, last):
        weight = tl.load(weight_at, mask=inside[:, None], other=0.0)
        x = tl.load(x_at, mask=real[None, :], other=0.0)
        product = tl.dot(weight, x)
        scale = tl.load(scale_ptr + group * COLUMNS + column, mask=inside, other=0.0)
        x_scale = tl.load(x_scale_ptr + x_scale_row + group, mask=real, other=0.0)
        total += product * scale[:, None] * x_scale[None, :]
        weight_at += GROUP
        x_at += GROUP
    return total
