"""Triton kernels for decode attention: one pass over a part of each row's context, then a merge.

Softmax is kept in base 2: scores are multiplied by log2(e) once, and exp2 is what the device has.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Finite: a chunk in which all keys of a query are masked gives no NaN, and the sums over it are
# multiplied by exp2(-1e30) = 0 as soon as the query attends to a key.
FAR_BELOW = tl.constexpr(-1e30)


@triton.jit
def decode_part(
    q_ptr,  # [rows, heads, dim]
    cache_ptr,  # [layers, 2, blocks, block_size, kv_heads * dim]
    layer_ptr,  # i32[1]
    tables_ptr,  # i32[rows, PAGES]
    starts_ptr,  # i32[rows]
    lengths_ptr,  # i32[rows]
    sinks_ptr,  # f32[heads], read if HAS_SINKS
    out_ptr,  # [rows, heads, SPLITS, dim]
    lse_ptr,  # f32[rows, heads, SPLITS], base 2 unless SPLITS is 1
    LAYER_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    SHORTEST_SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per row, kv head and split: all query heads of that kv head at once."""
    program = tl.program_id(0)
    split = program % SPLITS
    head = program // SPLITS % KV_HEADS
    row = (program // (SPLITS * KV_HEADS)).to(tl.int64)
    first, end = context_in_view(starts_ptr, lengths_ptr, row, WINDOW)
    length = split_length(end - first, SPLITS, SHORTEST_SPLIT, TOKENS)
    low = first + split * length
    high = tl.minimum(low + length, end)
    if SPLITS > 1 and low >= high:  # merge_parts skips these parts too
        return
    member = tl.arange(0, PADDED_GROUP)
    query_head = head * GROUP + member
    lane = tl.arange(0, PADDED_DIM)
    real = (member < GROUP)[:, None] & (lane < HEAD_DIM)[None, :]
    heads = KV_HEADS * GROUP
    at = (row * heads + query_head)[:, None] * HEAD_DIM + lane[None, :]
    q = tl.load(q_ptr + at, mask=real, other=0.0).to(cache_ptr.dtype.element_ty)

    layer = tl.load(layer_ptr).to(tl.int64)
    keys_ptr = cache_ptr + layer * LAYER_STRIDE + head * HEAD_STRIDE
    table_ptr = tables_ptr + row * PAGES
    highest = tl.full([PADDED_GROUP], FAR_BELOW, tl.float32)
    total = tl.zeros([PADDED_GROUP], tl.float32)
    mixed = tl.zeros([PADDED_GROUP, PADDED_DIM], tl.float32)
    for begin in tl.range(low, high, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        inside = token < high
        where = token_pointers(
            keys_ptr, table_ptr, token, inside, lane, BLOCK_STRIDE, TOKEN_STRIDE, BLOCK_SIZE
        )
        stored = inside[:, None] & (lane < HEAD_DIM)[None, :]
        keys = tl.load(where, mask=stored, other=0.0)
        values = tl.load(where + PLANE_STRIDE, mask=stored, other=0.0)
        scores = scored(q, keys, SCALE, SOFT_CAP, PRECISION)
        scores = tl.where(inside[None, :], scores, FAR_BELOW)
        highest, total, mixed = accumulated(scores, values, highest, total, mixed, PRECISION)

    if HAS_SINKS:
        known = member < GROUP
        sinks = tl.load(sinks_ptr + query_head, mask=known, other=0.0).to(tl.float32) * LOG2_E
        highest, total, mixed = with_sinks(sinks, highest, total, mixed)
    seen = high > low
    mixed = tl.where(seen, mixed / tl.where(total > 0.0, total, 1.0)[:, None], 0.0)
    lse = tl.where(seen, highest + tl.log2(tl.where(total > 0.0, total, 1.0)), -float("inf"))
    if SPLITS == 1:
        lse = lse / LOG2_E
    part = (row * heads + query_head) * SPLITS + split
    tl.store(lse_ptr + part, lse, mask=member < GROUP)
    mixed = mixed.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + part[:, None] * HEAD_DIM + lane[None, :], mixed, mask=real)


@triton.jit
def merge_parts(
    parts_ptr,  # f32[rows, heads, SPLITS, dim]
    part_lse_ptr,  # f32[rows, heads, SPLITS], base 2
    starts_ptr,  # i32[rows]
    lengths_ptr,  # i32[rows]
    sinks_ptr,  # f32[heads], read if HAS_SINKS
    out_ptr,  # [rows, heads, dim]
    lse_ptr,  # f32[rows, heads]
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    SHORTEST_SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """One program per row and query head: the parts that exist, weighted by their softmax sums."""
    program = tl.program_id(0).to(tl.int64)
    row = program // HEADS
    first, end = context_in_view(starts_ptr, lengths_ptr, row, WINDOW)
    length = split_length(end - first, SPLITS, SHORTEST_SPLIT, TOKENS)
    split = tl.arange(0, SPLITS)
    exists = first + split * length < end
    lane = tl.arange(0, PADDED_DIM)
    at = program * SPLITS + split
    lse = tl.load(part_lse_ptr + at, mask=exists, other=FAR_BELOW)
    stored = exists[:, None] & (lane < HEAD_DIM)[None, :]
    parts = tl.load(parts_ptr + at[:, None] * HEAD_DIM + lane[None, :], mask=stored, other=0.0)
    highest = tl.max(lse, 0)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + program % HEADS).to(tl.float32) * LOG2_E
        highest = tl.maximum(highest, sink)
    weights = tl.where(exists, tl.exp2(lse - highest), 0.0)
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - highest)
    seen = end > first
    total = tl.where(total > 0.0, total, 1.0)
    mixed = tl.where(seen, tl.sum(parts * weights[:, None], 0) / total, 0.0)
    mixed = mixed.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + program * HEAD_DIM + lane, mixed, mask=lane < HEAD_DIM)
    whole = tl.where(seen, (highest + tl.log2(total)) / LOG2_E, -float("inf"))
    tl.store(lse_ptr + program, whole)


@triton.jit
def context_in_view(starts_ptr, lengths_ptr, row, WINDOW: tl.constexpr):
    """The tokens a row attends to, from the first token of its table; none for padding."""
    length = tl.load(lengths_ptr + row)
    start = tl.load(starts_ptr + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW - start, 0)
    # A padding row has length 0, and its start may be larger.
    return first, tl.maximum(length - start, first)


@triton.jit
def split_length(count, SPLITS: tl.constexpr, SHORTEST_SPLIT: tl.constexpr, TOKENS: tl.constexpr):
    """Tokens per split: of the row's true length, in whole chunks; late splits may be empty."""
    length = (count + SPLITS - 1) // SPLITS
    length = (length + TOKENS - 1) // TOKENS * TOKENS
    return tl.maximum(length, SHORTEST_SPLIT)


@triton.jit
def token_pointers(
    plane_ptr,
    table_ptr,
    token,
    inside,
    lane,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Pointers to vectors, [tokens, lanes]; `token` counts from the first of the table."""
    block = tl.load(table_ptr + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    at = block * BLOCK_STRIDE + token % BLOCK_SIZE * TOKEN_STRIDE
    return plane_ptr + at[:, None] + lane[None, :]


@triton.jit
def scored(q, keys, SCALE: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr):
    """Scores of queries [q, d] against keys [k, d], times log2(e)."""
    scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    if SOFT_CAP > 0.0:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), which is right for infinite exponentials too.
        doubled = tl.exp2(scores * (2.0 * SCALE / SOFT_CAP * LOG2_E))
        return (SOFT_CAP * LOG2_E) * (1.0 - 2.0 / (doubled + 1.0))
    return scores * (SCALE * LOG2_E)


@triton.jit
def accumulated(scores, values, highest, total, mixed, PRECISION: tl.constexpr):
    """One step of the online softmax; scores [q, k] are FAR_BELOW where masked."""
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    shrink = tl.exp2(highest - new_highest)
    weights = tl.exp2(scores - new_highest[:, None])
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision=PRECISION)
    return new_highest, total, mixed


@triton.jit
def with_sinks(sinks, highest, total, mixed):
    """The online softmax after one more score per query head, whose value is zero."""
    new_highest = tl.maximum(highest, sinks)
    shrink = tl.exp2(highest - new_highest)
    return new_highest, total * shrink + tl.exp2(sinks - new_highest), mixed * shrink[:, None]
