"""Loads and stores quantized KV heads (one byte per element) inside Triton kernels.

In: arrays in the layout of `pallas_kernels.layout`. Out: bfloat16 values and a scale per token and
head, applied to scores and softmax weights. Needs no FP8 support of the device.

Codes are loaded in pairs, as int16: loads from shared memory transpose 16-bit elements, so pairs
reach registers in the layout of bfloat16 operands and are converted there, two at a time. The even
and odd lanes of a head are multiplied separately; `in_two` splits queries alike.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pallas_kernels import layout

# Adding and subtracting it rounds a float32 below 2**22 to the nearest integer, ties to even.
ROUNDING = tl.constexpr(12582912.0)
SMALLEST_SCALE = tl.constexpr(1e-12)
# As in `pallas_kernels.layout`.
ROUNDING_UP = tl.constexpr(layout.ROUNDING_UP)
LARGEST_INT8 = tl.constexpr(127.0)
LARGEST_FP8 = tl.constexpr(448.0)
# The smallest normal number of E4M3; those below are multiples of 2**-9.
LEAST_NORMAL = tl.constexpr(0.015625)
PER_UNIT = tl.constexpr(512.0)
# The distance of the exponents of float32 and E4M3, and the mantissa bits that are dropped.
REBIASED = tl.constexpr((127 - 7) << 3)


# PTX: two pairs of codes in, the even or odd code of each out, as bfloat16. FP8: the bits, moved to
# bfloat16's exponent and mantissa, are the number times 2**-120, subnormals included. int8: the low
# 7 bits are the mantissa of 128 + bits; 128 is subtracted, or 256 if the sign is set.
EVEN_FP8: Any = tl.constexpr("""{
.reg .b32 a, b, c, m;
mov.b32 m, 0x7b807b80;
mov.b32 c, 0x80008000;
shl.b32 a, $1, 8;
and.b32 a, a, 0x80008000;
shl.b32 b, $1, 4;
lop3.b32 a, b, 0x07f007f0, a, 0xea;
fma.rn.bf16x2 $0, a, m, c;
}""")
ODD_FP8: Any = tl.constexpr("""{
.reg .b32 a, b, c, m;
mov.b32 m, 0x7b807b80;
mov.b32 c, 0x80008000;
and.b32 a, $1, 0x80008000;
shr.u32 b, $1, 4;
lop3.b32 a, b, 0x07f007f0, a, 0xea;
fma.rn.bf16x2 $0, a, m, c;
}""")
EVEN_INT8: Any = tl.constexpr("""{
.reg .b32 a, b, c, m;
mov.b32 m, 0xbf80bf80;
mov.b32 c, 0x43004300;
lop3.b32 a, $1, 0x007f007f, c, 0xea;
lop3.b32 b, $1, 0x00800080, c, 0xea;
fma.rn.bf16x2 $0, b, m, a;
}""")
ODD_INT8: Any = tl.constexpr("""{
.reg .b32 a, b, c, m;
mov.b32 m, 0xbf80bf80;
mov.b32 c, 0x43004300;
shr.u32 b, $1, 8;
lop3.b32 a, b, 0x007f007f, c, 0xea;
lop3.b32 b, b, 0x00800080, c, 0xea;
fma.rn.bf16x2 $0, b, m, a;
}""")


@triton.jit
def as_multiplied(x, kind: tl.constexpr, CODES: tl.constexpr):
    """Cast queries to the dtype in which they are multiplied by keys of this cache dtype."""
    if CODES == "none":
        return x.to(kind)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def in_two(q, CODES: tl.constexpr):
    """Split queries [q, d] into even and odd lanes; not for an unquantized cache."""
    if CODES == "none":
        return q, 0.0
    else:
        return tl.split(tl.reshape(q, [q.shape[0], q.shape[1] // 2, 2]))


@triton.jit
def nothing_mixed(QUERIES: tl.constexpr, PADDED_DIM: tl.constexpr, CODES: tl.constexpr):
    """Zero accumulators of the output, split as by `in_two`."""
    if CODES == "none":
        return tl.zeros([QUERIES, PADDED_DIM], tl.float32), 0.0
    else:
        zeros = tl.zeros([QUERIES, PADDED_DIM // 2], tl.float32)
        return zeros, zeros


@triton.jit
def in_one(mixed, mixed_odd, CODES: tl.constexpr):
    """Undo `in_two`."""
    if CODES == "none":
        return mixed
    else:
        return tl.interleave(mixed, mixed_odd)


@triton.jit
def load_heads(
    plane_ptr,
    head,
    block,
    slot,
    inside,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    CODES: tl.constexpr,
):
    """Load one head of some tokens, [tokens, lanes], and its scales [1, tokens] (1.0 for an
    unquantized cache). Quantized heads are pairs of codes [tokens, lanes / 2], see `evens`."""
    if CODES == "none":
        lane = tl.arange(0, PADDED_DIM)
        places = block * BLOCK_STRIDE + slot * TOKEN_STRIDE
        stored = inside[:, None] & (lane < HEAD_DIM)[None, :]
        first = plane_ptr + head * HEAD_DIM
        return tl.load(first + places[:, None] + lane[None, :], mask=stored, other=0), 1.0
    else:
        lane = tl.arange(0, PADDED_DIM // 2)
        pairs_ptr = plane_ptr.to(tl.pointer_type(tl.int16), bitcast=True)
        pairs_ptr += head * (HEAD_DIM // 2)
        places = block * (BLOCK_STRIDE // 2) + slot * (TOKEN_STRIDE // 2)
        stored = inside[:, None] & (lane < HEAD_DIM // 2)[None, :]
        pairs = tl.load(pairs_ptr + places[:, None] + lane[None, :], mask=stored, other=0)
        # Scales are loaded in pairs: asynchronous copies to shared memory take at least 4 bytes.
        words_ptr = plane_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        words_ptr += SCALES // 4 + head * (BLOCK_SIZE // 2)
        places = block * (BLOCK_STRIDE // 4) + (slot >> 1)
        words = tl.load(words_ptr + places, mask=inside, other=0)
        bits = tl.where((slot & 1) == 0, words << 16, words & -65536)
        return pairs, bits.to(tl.float32, bitcast=True)[None, :]


@triton.jit
def evens(pairs, CODES: tl.constexpr):
    """The first code of each pair, exact in bfloat16."""
    return tl.inline_asm_elementwise(
        EVEN_FP8 if CODES == "fp8" else EVEN_INT8, "=r,r", [pairs],
        dtype=tl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def odds(pairs, CODES: tl.constexpr):
    """The second code of each pair."""
    return tl.inline_asm_elementwise(
        ODD_FP8 if CODES == "fp8" else ODD_INT8, "=r,r", [pairs],
        dtype=tl.bfloat16, is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def store_heads(
    target,
    scale_target,
    heads,
    kept,
    lane,
    HEAD_DIM: tl.constexpr,
    kind: tl.constexpr,
    CODES: tl.constexpr,
):
    """Store float32 heads [rows, lanes] where `kept`, quantized. `target` [rows, 1] points to each,
    `scale_target` [rows] to its scale; lanes beyond the head must be zero."""
    inside = kept[:, None] & (lane < HEAD_DIM)[None, :]
    if CODES == "none":
        tl.store(target + lane[None, :], heads.to(kind), mask=inside)
    else:
        largest = LARGEST_FP8 if CODES == "fp8" else LARGEST_INT8
        exact = tl.maximum(tl.max(tl.abs(heads), 1) / largest, SMALLEST_SCALE)
        bits = (exact.to(tl.int32, bitcast=True) + ROUNDING_UP) >> 16
        scale = (bits << 16).to(tl.float32, bitcast=True)
        units = heads / scale[:, None]
        codes = fp8_bits(units) if CODES == "fp8" else (units + ROUNDING) - ROUNDING
        tl.store(target + lane[None, :], codes.to(tl.int32).to(kind), mask=inside)
        scale_target = scale_target.to(tl.pointer_type(tl.int16), bitcast=True)
        tl.store(scale_target, bits.to(tl.int16), mask=kept)


@triton.jit
def fp8_bits(x):
    """Bits of x rounded to E4M3, ties to even, for |x| up to 448."""
    size = tl.abs(x)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - REBIASED
    small = ((size * PER_UNIT + ROUNDING) - ROUNDING).to(tl.int32)
    found = tl.where(size < LEAST_NORMAL, small, normal)
    return found | tl.where(x < 0, 0x80, 0)
