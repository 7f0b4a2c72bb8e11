"""Triton kernel for latent attention: all heads read the same entries, in tiles of heads.

An entry is key and value at once and is loaded once. Softmax is in base 2; the last program merges
the parts of a context, as in decode attention.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.decode_attention.kernels import (
    FAR_BELOW,
    LOG2_E,
    accumulated,
    is_last,
    keep,
    merged,
    part_fields,
    row_lists,
    token_pointers,
    write_row,
)


@triton.jit
def latent_parts(
    q_ptr,  # [tokens, HEADS, RANK + ROPE]
    cache_ptr,  # [layers, blocks, block_size, RANK + ROPE]
    layer_ptr,  # i32[1]
    tables_ptr,  # i32[tokens / EACH, PAGES]
    parts_ptr,  # i32: see `parts_between`, for tokens and tiles in place of rows and kv heads
    done_ptr,  # i32[tokens * TILES or more] if SPLIT: as in decode attention
    out_ptr,  # [tokens, HEADS, RANK]
    lse_ptr,  # f32[tokens, HEADS]
    partial_ptr,  # f32[PARTS, HEADS, RANK], of tokens that have several parts
    partial_lse_ptr,  # f32[PARTS, HEADS], base 2
    ROWS: tl.constexpr,
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
    """One program per head tile and slot, for one part of a token's context. Programs loop over
    further parts where there are more parts than slots."""
    program = tl.program_id(0)
    tile = program % TILES
    entries_ptr = cache_ptr + tl.load(layer_ptr).to(tl.int64) * LAYER_STRIDE
    head = tile * TILE + tl.arange(0, TILE)
    lane = tl.arange(0, PADDED_RANK)
    turned = tl.arange(0, PADDED_ROPE)
    known = head < HEADS
    real = known[:, None] & (lane < RANK)[None, :]
    rotated = known[:, None] & (turned < ROPE)[None, :]
    count_ptr, total_parts = row_lists(parts_ptr, PARTS)
    for part in tl.range(program // TILES, total_parts, SLOTS):
        row, low, high = part_fields(parts_ptr, part, PARTS)
        heads_at = row.to(tl.int64) * HEADS + head
        q_at = q_ptr + heads_at[:, None] * (RANK + ROPE)
        kind = cache_ptr.dtype.element_ty
        q = tl.load(q_at + lane[None, :], mask=real, other=0.0).to(kind)
        q_turned = tl.load(q_at + RANK + turned[None, :], mask=rotated, other=0.0).to(kind)
        highest, total, mixed = attended(
            q, q_turned, entries_ptr, tables_ptr + row // EACH * PAGES, low, high, lane, turned,
            BLOCK_STRIDE, TOKEN_STRIDE, BLOCK_SIZE, TILE, RANK, PADDED_RANK, ROPE, TOKENS, SCALE,
            PRECISION,
        )  # fmt: skip
        count = tl.load(count_ptr + row)
        last = count == 1
        if SPLIT and count > 1:
            first = row * (PARTS // ROWS)
            number = tl.load(parts_ptr + 3 * PARTS + part)
            keep(
                partial_ptr, partial_lse_ptr, (first + number) * HEADS + head, highest, total,
                mixed, lane, known, real, RANK,
            )  # fmt: skip
            last = is_last(done_ptr + row * TILES + tile, count)
            if last:
                highest, total, mixed = merged(
                    partial_ptr, partial_lse_ptr, first, count, head, lane, known, real,
                    HEADS, TILE, RANK, PADDED_RANK,
                )  # fmt: skip
        if last:
            seen = high > low  # a token that attends to nothing has one part, which is empty
            # Read again: addresses held through the loop would spill.
            heads_at = tl.load(parts_ptr + part).to(tl.int64) * HEADS + head
            write_row(
                out_ptr, lse_ptr, lse_ptr, heads_at, head, seen, highest, total, mixed, lane,
                known, real, RANK, False,
            )  # fmt: skip


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
    """Online softmax of queries [heads, rank] and [heads, rope] over tokens `low` to `high`."""
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
        highest, total, mixed, _ = accumulated(
            scores, vectors, 1.0, highest, total, mixed, 0.0, PRECISION, "none"
        )
    return highest, total, mixed
