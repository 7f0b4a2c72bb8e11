"""Small Triton kernels for the tests of launching."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_rows(x_ptr, out_ptr, WIDTH: tl.constexpr, FACTOR: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    x = tl.load(x_ptr + at).to(tl.float32)
    tl.store(out_ptr + at, (x * FACTOR).to(out_ptr.dtype.element_ty))


@triton.jit
def add_rows(total_ptr, x_ptr, before_ptr, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    total = tl.load(total_ptr + at)
    tl.store(before_ptr + at, total)
    tl.store(total_ptr + at, total + tl.load(x_ptr + at))


@triton.jit
def multiply(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    product = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision="ieee")
    tl.store(out_ptr + at, product)
