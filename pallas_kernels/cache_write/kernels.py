"""Triton kernels that write new tokens into the paged cache, in place."""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.coded_heads import store_heads

INFINITY, NAN = tl.constexpr(float("inf")), tl.constexpr(float("nan"))


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
    SCALES: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """One program per token: its keys and values of all kv heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot < 0) | (slot >= BLOCKS * BLOCK_SIZE):
        return
    layer = tl.load(layer_ptr).to(tl.int64)
    lane = tl.arange(0, PADDED_WIDTH)
    inside = lane < WIDTH
    target = cache_ptr + layer * LAYER_STRIDE + slot // BLOCK_SIZE * BLOCK_STRIDE
    target += slot % BLOCK_SIZE * TOKEN_STRIDE + lane
    kind = cache_ptr.dtype.element_ty
    keys = tl.load(k_ptr + token * WIDTH + lane, mask=inside, other=0.0)
    values = tl.load(v_ptr + token * WIDTH + lane, mask=inside, other=0.0)
    tl.store(target, keys.to(kind), mask=inside)
    tl.store(target + PLANE_STRIDE, values.to(kind), mask=inside)


@triton.jit
def write_coded_tokens(
    cache_ptr,  # of codes, see `pallas_kernels.layout`, written in place
    layer_ptr,  # i32[1]
    k_ptr,  # [tokens, KV_HEADS, dim]
    v_ptr,  # [tokens, KV_HEADS, dim]
    slots_ptr,  # i32[tokens]; outside of the cache: skip
    LAYER_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    CODES: tl.constexpr,
):
    """One program per token: quantizes its KV heads and writes codes and scales."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot < 0) | (slot >= BLOCKS * BLOCK_SIZE):
        return
    layer = tl.load(layer_ptr).to(tl.int64)
    head, lane = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED_DIM)
    kept = head < KV_HEADS
    inside = kept[:, None] & (lane < HEAD_DIM)[None, :]
    at = (token * KV_HEADS + head)[:, None] * HEAD_DIM + lane[None, :]
    block = cache_ptr + layer * LAYER_STRIDE + slot // BLOCK_SIZE * BLOCK_STRIDE
    target = block + slot % BLOCK_SIZE * TOKEN_STRIDE + head[:, None] * HEAD_DIM
    scale = block + SCALES + (head * BLOCK_SIZE + slot % BLOCK_SIZE) * 2
    kind = cache_ptr.dtype.element_ty
    keys = tl.load(k_ptr + at, mask=inside, other=0.0).to(tl.float32)
    store_heads(target, scale, keys, kept, lane, HEAD_DIM, kind, CODES)
    values = tl.load(v_ptr + at, mask=inside, other=0.0).to(tl.float32)
    target, scale = target + PLANE_STRIDE, scale + PLANE_STRIDE
    store_heads(target, scale, values, kept, lane, HEAD_DIM, kind, CODES)


@triton.jit
def rotate_and_write_heads(
    cache_ptr,  # [layers, 2, blocks, block_size, kv_heads * dim], written in place
    layer_ptr,  # i32[1]
    qkv_ptr,  # [tokens, KV_HEADS, GROUP + 2, dim]
    slots_ptr,  # i32[tokens]; outside of the cache: skip
    cos_ptr,  # f32[tokens, PAIRS], read if PAIRS > 0
    sin_ptr,  # f32[tokens, PAIRS]
    q_weight_ptr,  # [dim] or [KV_HEADS, GROUP, dim], read if NORM
    k_weight_ptr,  # [dim] or [KV_HEADS, dim]
    inverse_rms_ptr,  # f32[tokens, 2] of queries and keys, read if NORM == "whole"
    q_ptr,  # [tokens, KV_HEADS * GROUP, dim]
    LAYER_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_MEMBERS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    NORM: tl.constexpr,
    EPS: tl.constexpr,
    WEIGHT_OFFSET: tl.constexpr,
    CODES: tl.constexpr,
    FINITE: tl.constexpr,
):
    """One program per token and KV head: query group, key and value as one tile. FINITE: as
    `with_finite_values`."""
    program = tl.program_id(0).to(tl.int64)
    token = program // KV_HEADS
    head = program % KV_HEADS
    member = tl.arange(0, PADDED_MEMBERS)
    lane = tl.arange(0, PADDED_DIM)
    known = (member < GROUP + 2)[:, None] & (lane < HEAD_DIM)[None, :]
    is_query = member < GROUP
    is_value = member == GROUP + 1
    row_ptr = qkv_ptr + (program * (GROUP + 2) + member)[:, None] * HEAD_DIM
    made = tl.load(row_ptr + lane[None, :], mask=known, other=0.0).to(tl.float32)
    plain = made
    inverse = tl.full([PADDED_MEMBERS], 1.0, tl.float32)
    if NORM == "head":
        inverse = tl.rsqrt(tl.sum(made * made, 1) / HEAD_DIM + EPS)
    if NORM == "whole":
        kind = tl.where(is_query, 0, 1)
        inverse = tl.load(inverse_rms_ptr + token * 2 + kind)
    if NORM != "none":
        weight = norm_weights(
            q_weight_ptr, k_weight_ptr, member, lane, known, head, GROUP, HEAD_DIM, NORM
        )
        made = made * inverse[:, None] * (weight + WEIGHT_OFFSET)
    if PAIRS > 0:
        turns = lane < 2 * PAIRS
        other = tl.where(lane < PAIRS, lane + PAIRS, tl.where(turns, lane - PAIRS, lane))
        partner = tl.load(row_ptr + other[None, :], mask=known, other=0.0).to(tl.float32)
        if NORM != "none":
            weight = norm_weights(
                q_weight_ptr, k_weight_ptr, member, other, known, head, GROUP, HEAD_DIM, NORM
            )
            partner = partner * inverse[:, None] * (weight + WEIGHT_OFFSET)
        angle = token * PAIRS + lane % PAIRS
        cos = tl.load(cos_ptr + angle, mask=turns, other=1.0)
        sin = tl.load(sin_ptr + angle, mask=turns, other=0.0)
        sin = tl.where(lane < PAIRS, -sin, sin)
        made = made * cos[None, :] + partner * sin[None, :]
    made = tl.where(is_value[:, None], plain, made)

    query = (program * GROUP + member)[:, None] * HEAD_DIM + lane[None, :]
    tl.store(q_ptr + query, made.to(q_ptr.dtype.element_ty), mask=known & is_query[:, None])
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if (slot < 0) | (slot >= BLOCKS * BLOCK_SIZE):
        return
    layer = tl.load(layer_ptr).to(tl.int64)
    block = cache_ptr + layer * LAYER_STRIDE + slot // BLOCK_SIZE * BLOCK_STRIDE
    target = block + slot % BLOCK_SIZE * TOKEN_STRIDE + head * HEAD_DIM
    scale = block + SCALES + (head * BLOCK_SIZE + slot % BLOCK_SIZE) * 2
    plane = tl.where(is_value, PLANE_STRIDE, 0).to(tl.int64)
    kept = (member >= GROUP) & (member < GROUP + 2)
    heads = tl.where(known, made, 0.0)
    if FINITE:
        rounded = heads.to(cache_ptr.dtype.element_ty).to(tl.float32)
        bad = is_value[:, None] & ~(tl.abs(rounded) < INFINITY)
        found = tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0
        heads = tl.where(bad, 0.0, tl.where((member == GROUP)[:, None] & found, NAN, heads))
    store_heads(
        target + plane[:, None], scale + plane, heads, kept, lane, HEAD_DIM,
        cache_ptr.dtype.element_ty, CODES,
    )  # fmt: skip


@triton.jit
def norm_weights(
    q_weight_ptr,
    k_weight_ptr,
    member,
    lane,
    known,
    head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NORM: tl.constexpr,
):
    """Load the norm weight of every lane of a KV head's queries and key, [members, lanes]."""
    q_row = member * 0
    k_row = 0
    if NORM == "whole":
        q_row = head * GROUP + member
        k_row = head
    is_query = known & (member < GROUP)[:, None]
    is_key = known & (member == GROUP)[:, None]
    q_at = q_row[:, None] * HEAD_DIM + lane[None, :]
    k_at = k_row * HEAD_DIM + lane[None, :] + member[:, None] * 0
    q_weight = tl.load(q_weight_ptr + q_at, mask=is_query, other=0.0).to(tl.float32)
    k_weight = tl.load(k_weight_ptr + k_at, mask=is_key, other=0.0).to(tl.float32)
    return q_weight + k_weight
