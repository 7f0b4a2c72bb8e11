"""Helpers of the sampling kernels: order keys, weights, parts of rows.

Floats are compared as integers of the same order. Weights relative to the best token are multiples
of 2^-35, so their sums are exact in any order: the split of a row among programs cannot change
which tokens stay.
"""

from __future__ import annotations

import triton
import triton.language as tl

GREEDY_BELOW = tl.constexpr(1e-5)
LOWEST_FINITE = tl.constexpr(-0x7F800000)  # order key of the most negative finite float32
NEVER = tl.constexpr(-0x80000000)  # below every order key
# The sum of a quarter of a million such weights is exact in float64.
WEIGHT_OF_BEST = tl.constexpr(2.0**35)


@triton.jit
def part_range(part, VOCAB: tl.constexpr, PART: tl.constexpr):
    """Half-open index range of a part of a row; late parts may be empty."""
    begin = (part * PART).to(tl.int32)
    return begin, tl.minimum(begin + PART, VOCAB)


@triton.jit
def load_logits(row_ptr, index, end):
    """Load logits as float32, -inf past the end."""
    return tl.load(row_ptr + index, mask=index < end, other=-float("inf")).to(tl.float32)


@triton.jit
def best_of_row(best_ptr, row, PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr):
    """Maximum logit of the row; infinite for an invalid row."""
    part = tl.arange(0, PADDED_PARTS)
    best = tl.load(best_ptr + row * PARTS + part, mask=part < PARTS, other=-float("inf"))
    return tl.max(best, 0)


@triton.jit
def order_key(logits):
    """Monotonic int32 key of a float, with -0 equal to 0."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def candidate_key(logits, highest, min_p):
    """Order key, or NEVER for -inf and tokens cut by min-p."""
    possible = tl.exp(logits - highest) >= tl.minimum(min_p, 1.0)
    possible = possible & (logits > -float("inf"))
    return tl.where(possible, order_key(logits), NEVER)


@triton.jit
def amount_of(key, highest, WEIGHTED: tl.constexpr):
    """1, or with WEIGHTED the token's weight in fixed point."""
    if WEIGHTED:
        bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
        weight = tl.exp(bits.to(tl.float32, bitcast=True) - highest)
        # NEVER is no float's key and has no weight.
        weight = tl.where(key >= LOWEST_FINITE, weight, 0.0)
        return (weight * WEIGHT_OF_BEST + 0.5).to(tl.int64)
    return (key * 0 + 1).to(tl.int64)


@triton.jit
def share_of(total, top_p):
    """Smallest integer >= max(1, top_p * total)."""
    share = tl.maximum(top_p, 0.0).to(tl.float64) * total.to(tl.float64)
    whole = share.to(tl.int64)
    whole += (whole.to(tl.float64) < share).to(tl.int64)
    return tl.maximum(whole, 1)
