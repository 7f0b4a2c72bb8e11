"""Triton kernels that write new tokens into the paged cache, in place."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_tokens(
    cache_ptr,  # [layers, 2, blocks, block_size, kv_heads * dim], written in place
    layer_ptr,  # i32[1]
    k_ptr,  # [tokens, WIDTH]
    v_ptr,  # [tokens, WIDTH]
    slots_ptr,  # i32[tokens]; outside of the cache: skip
    LAYER_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """One program a token: its keys and values of all kv heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot < 0) | (slot >= BLOCKS * BLOCK_SIZE):
        return
    layer = tl.load(layer_ptr).to(tl.int64)
    lane = tl.arange(0, PADDED_WIDTH)
    inside = lane < WIDTH
    target = cache_ptr + layer * LAYER_STRIDE + slot // BLOCK_SIZE * BLOCK_STRIDE
    target += slot % BLOCK_SIZE * TOKEN_STRIDE
    target += lane // HEAD_DIM * HEAD_STRIDE + lane % HEAD_DIM
    kind = cache_ptr.dtype.element_ty
    keys = tl.load(k_ptr + token * WIDTH + lane, mask=inside, other=0.0)
    values = tl.load(v_ptr + token * WIDTH + lane, mask=inside, other=0.0)
    tl.store(target, keys.to(kind), mask=inside)
    tl.store(target + PLANE_STRIDE, values.to(kind), mask=inside)
