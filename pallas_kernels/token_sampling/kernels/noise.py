"""Gumbel noise in Triton, with the bits of `jax.random.bits`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gumbel(first_word, second_word, index):
    """Finite Gumbel noise from 32 random bits, enough to resolve the tail."""
    bits = random_bits(first_word, second_word, index.to(tl.uint32))
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    # log(1 - u), corrected for the rounding of 1 - u by the quotient.
    rest = 1.0 - uniform
    lost = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    negative_log = tl.where(rest == 1.0, uniform, -tl.log(rest) * tl.div_rn(uniform, lost))
    return -tl.log(negative_log)


@triton.jit
def random_bits(first_word, second_word, index):
    """Threefry-2x32 of the counter (0, index), its two words XORed, as jax.random.bits does."""
    third_word = first_word ^ second_word ^ 0x1BD11BDA
    x = index * 0 + first_word
    y = index + second_word
    x, y = four_rounds(x, y, 13, 15, 26, 6)
    x, y = x + second_word, y + third_word + 1
    x, y = four_rounds(x, y, 17, 29, 16, 24)
    x, y = x + third_word, y + first_word + 2
    x, y = four_rounds(x, y, 13, 15, 26, 6)
    x, y = x + first_word, y + second_word + 3
    x, y = four_rounds(x, y, 17, 29, 16, 24)
    x, y = x + second_word, y + third_word + 4
    x, y = four_rounds(x, y, 13, 15, 26, 6)
    x, y = x + third_word, y + first_word + 5
    return x ^ y


@triton.jit
def four_rounds(
    x, y, FIRST: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, FOURTH: tl.constexpr
):
    x, y = one_round(x, y, FIRST)
    x, y = one_round(x, y, SECOND)
    x, y = one_round(x, y, THIRD)
    return one_round(x, y, FOURTH)


@triton.jit
def one_round(x, y, TURN: tl.constexpr):
    x = x + y
    y = (y << TURN) | (y >> (32 - TURN))
    return x, y ^ x
