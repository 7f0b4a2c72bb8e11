"""Triton kernel for latent attention: all heads read the same entries, a tile of heads at a time.

An entry serves as key and as value: it is loaded once. Softmax is kept in base 2, and parts of a
row's context are merged by the last program to finish, as in decode attention.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.decode_attention.kernels import (
    FAR_BELOW,
    LOG2_E,
    accumulated,
    is_last,
    merged,
    normalised,
    token_pointers,
)


@triton.jit
def latent_parts(
    q_ptr,  # [tokens, HEADS, RANK + ROPE]
    cache_ptr,  # [layers, blocks, block_size, RANK + ROPE]
    layer_ptr,  # i32[1]
    tables_ptr,  # i32[tokens / EACH, PAGES]
    parts_ptr,  # i32: the fields of every part, their number, and a zero per token and tile
    out_ptr,  # [tokens, HEADS, RANK]
    lse_ptr,  # f32[tokens, HEADS]
    partial_ptr,  # f32[PARTS, HEADS, RANK], of tokens that have several parts
    partial_lse_ptr,  # f32[PARTS, HEADS], base 2
    LAYER_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGES: tl.constexpr,
    EACH: tl.constexpr,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    RANK: tl.constexpr,
    PADDED_RANK: tl.constexpr,
    ROPE: tl.constexpr,
    PADDED_ROPE: tl.constexpr,
    PARTS: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per tile of heads and slot: one part of what a token attends to.

    Programs take further parts where there are more of them than slots.
    """
    program = tl.program_id(0)
    tile = program % TILES
    entries_ptr = cache_ptr + tl.load(layer_ptr).to(tl.int64) * LAYER_STRIDE
    head = tile * TILE + tl.arange(0, TILE)
    lane = tl.arange(0, PADDED_RANK)
    turned = tl.arange(0, PADDED_ROPE)
    known = head < HEADS
    real = known[:, None] & (lane < RANK)[None, :]
    rotated = known[:, None] & (turned < ROPE)[None, :]
    total_parts = tl.load(parts_ptr + 5 * PARTS)
    for part in tl.range(program // TILES, total_parts, SLOTS):
        row = tl.load(parts_ptr + part).to(tl.int64)
        low = tl.load(parts_ptr + PARTS + part)
        high = tl.load(parts_ptr + 2 * PARTS + part)
        heads_at = row * HEADS + head
        q_at = q_ptr + heads_at[:, None] * (RANK + ROPE)
        kind = cache_ptr.dtype.element_ty
        q = tl.load(q_at + lane[None, :], mask=real, other=0.0).to(kind)
        q_turned = tl.load(q_at + RANK + turned[None, :], mask=rotated, other=0.0).to(kind)
        highest, total, mixed = attended(
            q, q_turned, entries_ptr, tables_ptr + row // EACH * PAGES, low, high, lane, turned,
            BLOCK_STRIDE, TOKEN_STRIDE, BLOCK_SIZE, TILE, RANK, PADDED_RANK, ROPE, TOKENS, SCALE,
            PRECISION,
        )  # fmt: skip
        count = tl.load(parts_ptr + 4 * PARTS + part)
        last = count == 1
        if SPLIT and count > 1:
            first = tl.load(parts_ptr + 3 * PARTS + part)
            done_ptr = parts_ptr + 5 * PARTS + 1 + row * TILES + tile
            mixed, lse = normalised(highest, total, mixed)
            kept_at = part * HEADS + head
            tl.store(partial_lse_ptr + kept_at, lse, mask=known)
            tl.store(partial_ptr + kept_at[:, None] * RANK + lane[None, :], mixed, mask=real)
            last = is_last(done_ptr, count)
            if last:
                highest, total, mixed = merged(
                    partial_ptr, partial_lse_ptr, first, count, head, lane, known, real,
                    HEADS, TILE, RANK, PADDED_RANK,
                )  # fmt: skip
        if last:
            mixed, lse = normalised(highest, total, mixed)
            seen = high > low  # a token that attends to nothing has one part, which is empty
            lse = tl.where(seen, lse / LOG2_E, -float("inf"))
            tl.store(lse_ptr + heads_at, lse, mask=known)
            result = tl.where(seen, mixed, 0.0).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + heads_at[:, None] * RANK + lane[None, :], result, mask=real)


@triton.jit
def attended(
    q,
    q_turned,
    entries_ptr,
    table_ptr,
    low,
    high,
    lane,
    turned,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    RANK: tl.constexpr,
    PADDED_RANK: tl.constexpr,
    ROPE: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The online softmax of queries [heads, rank] and [heads, rope] over tokens low to high."""
    highest = tl.full([TILE], FAR_BELOW, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, PADDED_RANK], tl.float32)
    for begin in tl.range(low, high, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        inside = token < high
        vectors_at = token_pointers(
            entries_ptr, table_ptr, token, inside, lane, BLOCK_STRIDE, TOKEN_STRIDE, BLOCK_SIZE
        )
        keys_at = token_pointers(
            entries_ptr + RANK, table_ptr, token, inside, turned, BLOCK_STRIDE, TOKEN_STRIDE,
            BLOCK_SIZE,
        )  # fmt: skip
        stored = inside[:, None] & (lane < RANK)[None, :]
        vectors = tl.load(vectors_at, mask=stored, other=0.0)
        stored = inside[:, None] & (turned < ROPE)[None, :]
        keys = tl.load(keys_at, mask=stored, other=0.0)
        scores = tl.dot(q, tl.trans(vectors), input_precision=PRECISION)
        scores = tl.dot(q_turned, tl.trans(keys), scores, input_precision=PRECISION)
        scores = tl.where(inside[None, :], scores * (SCALE * LOG2_E), FAR_BELOW)
        highest, total, mixed = accumulated(scores, vectors, highest, total, mixed, PRECISION)
    return highest, total, mixed
