"""Triton kernels for prefill attention, and for its dequantized copies of blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.coded_heads import (
    as_multiplied,
    evens,
    in_one,
    in_two,
    load_heads,
    nothing_mixed,
    odds,
)
from pallas_kernels.decode_attention.kernels import (
    FAR_BELOW,
    LOG2_E,
    accumulated,
    blocks_and_slots,
    scored,
    with_sinks,
)

# Position of a query that another call computes; its output is not written.
ELSEWHERE = tl.constexpr(-2)


@triton.jit
def prefill_tiles(
    q_ptr,  # [FIRST + tiles * TILE, heads, dim]
    cache_ptr,  # [layers, 2, blocks, block_size, kv_heads * dim]
    layer_ptr,  # i32[1]
    tables_ptr,  # i32[tiles, PAGES]
    starts_ptr,  # i32[tiles]
    positions_ptr,  # i32[tiles * TILE], -1 for padding; if PARTIAL, all of a tile may be ELSEWHERE
    ends_ptr,  # i32[tiles] keys of the tile's row, read if HAS_ENDS
    runs_ptr,  # i32[RUNS + 1] the first tile of each run, and all tiles, read if HAS_RUNS
    sinks_ptr,  # f32[heads], read if HAS_SINKS
    out_ptr,  # [FIRST + tiles * TILE, heads, dim]
    lse_ptr,  # f32[FIRST + tiles * TILE, heads]
    LAYER_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    FIRST: tl.constexpr,
    RUNS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_RUNS: tl.constexpr,
    PARTS: tl.constexpr,
    PART_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_ENDS: tl.constexpr,
    PARTIAL: tl.constexpr,
    PRECISION: tl.constexpr,
    CODES: tl.constexpr,
):
    """One program per KV head, run of tiles and part of it: tokens x query heads of the KV head.

    Without runs each tile is one. Programs of one KV head and row are adjacent, to hit its keys in
    L2. A row's last runs, with the most keys, start first: no long program starts late.
    """
    QUERIES: tl.constexpr = PART_TOKENS * PADDED_GROUP
    program = tl.program_id(0)
    part = PARTS - 1 - program % PARTS
    run = RUNS - 1 - program // PARTS % RUNS
    head = program // (PARTS * RUNS)
    tokens = TILE
    tile = run
    if HAS_RUNS:
        tile = tl.load(runs_ptr + run)
        tokens = (tl.load(runs_ptr + run + 1) - tile) * TILE
        if tokens == 0:
            return
    query = tl.arange(0, QUERIES)
    in_tile = part * PART_TOKENS + query // PADDED_GROUP
    member = query % PADDED_GROUP
    query_head = head * GROUP + member
    real = (in_tile < tokens) & (member < GROUP)
    token = tile * TILE + in_tile
    own = tl.load(positions_ptr + token, mask=real, other=ELSEWHERE if PARTIAL else -1)
    lane = tl.arange(0, PADDED_DIM)
    heads = KV_HEADS * GROUP
    heads_at = (FIRST + token).to(tl.int64) * heads + query_head
    at = heads_at[:, None] * HEAD_DIM + lane[None, :]
    stored = real[:, None] & (lane < HEAD_DIM)[None, :]
    last = tl.max(own, 0)
    if PARTIAL:  # noqa: SIM102 - decided at compile time
        if last == ELSEWHERE:
            return
    if last < 0:
        zeros = tl.zeros([QUERIES, PADDED_DIM], out_ptr.dtype.element_ty)
        tl.store(out_ptr + at, zeros, mask=stored)
        nothing = tl.full([QUERIES], -float("inf"), tl.float32)
        tl.store(lse_ptr + heads_at, nothing, mask=real)
        return
    q = tl.load(q_ptr + at, mask=stored, other=0.0)
    q = as_multiplied(q, cache_ptr.dtype.element_ty, CODES)

    # From here on positions count from the first token of the table.
    start = tl.load(starts_ptr + tile)
    used = own >= 0
    own -= start
    earliest = tl.min(tl.where(used, own, 2147483647), 0)
    end = last - start + 1
    if HAS_ENDS:
        end = tl.minimum(end, tl.load(ends_ptr + tile) - start)
    layer = tl.load(layer_ptr).to(tl.int64)
    keys_ptr = cache_ptr + layer * LAYER_STRIDE
    table_ptr = tables_ptr + tile.to(tl.int64) * PAGES
    highest = tl.full([QUERIES], FAR_BELOW, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    q, q_odd = in_two(q, CODES)
    mixed, mixed_odd = nothing_mixed(QUERIES, PADDED_DIM, CODES)
    some = tl.arange(0, TOKENS)
    low = 0
    if WINDOW > 0:
        low = tl.maximum(earliest - WINDOW + 1, 0)
    else:
        # Chunks before the earliest query need no mask.
        low = tl.minimum(earliest + 1, end) // TOKENS * TOKENS
        for begin in tl.range(0, low, TOKENS):
            inside = some >= 0
            block, slot = blocks_and_slots(table_ptr, begin + some, inside, BLOCK_SIZE)
            keys, key_units = load_heads(
                keys_ptr, head, block, slot, inside,
                BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, CODES,
            )  # fmt: skip
            values, units = load_heads(
                keys_ptr + PLANE_STRIDE, head, block, slot, inside,
                BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, CODES,
            )  # fmt: skip
            scores = scored(q, q_odd, keys, key_units, SCALE, SOFT_CAP, PRECISION, CODES)
            highest, total, mixed, mixed_odd = accumulated(
                scores, values, units, highest, total, mixed, mixed_odd, PRECISION, CODES
            )
    for begin in tl.range(low, end, TOKENS):
        position = begin + some
        inside = position < end
        block, slot = blocks_and_slots(table_ptr, position, inside, BLOCK_SIZE)
        keys, key_units = load_heads(
            keys_ptr, head, block, slot, inside,
            BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, CODES,
        )  # fmt: skip
        values, units = load_heads(
            keys_ptr + PLANE_STRIDE, head, block, slot, inside,
            BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, CODES,
        )  # fmt: skip
        scores = scored(q, q_odd, keys, key_units, SCALE, SOFT_CAP, PRECISION, CODES)
        seen = position[None, :] <= own[:, None]
        if WINDOW > 0:
            seen = seen & (position[None, :] > own[:, None] - WINDOW)
        if HAS_ENDS:
            seen = seen & inside[None, :]
        scores = tl.where(seen, scores, FAR_BELOW)
        highest, total, mixed, mixed_odd = accumulated(
            scores, values, units, highest, total, mixed, mixed_odd, PRECISION, CODES
        )
    mixed = in_one(mixed, mixed_odd, CODES)

    if HAS_SINKS:
        sinks = tl.load(sinks_ptr + query_head, mask=real, other=0.0).to(tl.float32) * LOG2_E
        highest, total, mixed = with_sinks(sinks, highest, total, mixed)
    total = tl.where(total > 0.0, total, 1.0)
    mixed = tl.where(used[:, None], mixed / total[:, None], 0.0)
    lse = tl.where(used, (highest + tl.log2(total)) / LOG2_E, -float("inf"))
    tl.store(lse_ptr + heads_at, lse, mask=real)
    tl.store(out_ptr + at, mixed.to(out_ptr.dtype.element_ty), mask=stored)


@triton.jit
def copy_heads(
    cache_ptr,  # of codes, see `pallas_kernels.layout`
    layer_ptr,  # i32[1]
    sources_ptr,  # i32[PAGES]: the block that each page copies, or -1
    copy_ptr,  # bf16[1, 2, PAGES, block_size, kv_heads * dim]
    LAYER_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    CODES: tl.constexpr,
):
    """One program per plane, KV head and run of tokens: dequantizes them."""
    program = tl.program_id(0)
    head = program % KV_HEADS
    plane = (program // KV_HEADS % 2).to(tl.int64)
    token = program // (2 * KV_HEADS) * TOKENS + tl.arange(0, TOKENS)
    page = token // BLOCK_SIZE
    block = tl.load(sources_ptr + page, mask=page < PAGES, other=-1).to(tl.int64)
    if tl.max(block, 0) < 0:
        return
    inside = block >= 0
    layer = tl.load(layer_ptr).to(tl.int64)
    plane_ptr = cache_ptr + layer * LAYER_STRIDE + plane * PLANE_STRIDE
    pairs, units = load_heads(
        plane_ptr, head, block, token % BLOCK_SIZE, inside,
        BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, CODES,
    )  # fmt: skip
    heads = tl.interleave(evens(pairs, CODES), odds(pairs, CODES)).to(tl.float32)
    heads = (heads * tl.trans(units)).to(tl.bfloat16)
    lane = tl.arange(0, PADDED_DIM)
    row = (plane * PAGES * BLOCK_SIZE + token) * KV_HEADS + head
    stored = inside[:, None] & (lane < HEAD_DIM)[None, :]
    tl.store(copy_ptr + row[:, None] * HEAD_DIM + lane[None, :], heads, mask=stored)
