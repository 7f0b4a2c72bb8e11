"""Triton kernels for decode attention (split-K): the last program of a row merges its parts.

Rows of a team read their shared prefix as one part, with all their queries in one tile. Softmax is
in base 2: scores are multiplied by log2(e), because exp2 is the native instruction.
"""

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

LOG2_E = tl.constexpr(1.4426950408889634)
# Finite: a chunk in which all keys of a query are masked gives no NaN, and the sums over it are
# multiplied by exp2(-1e30) = 0 as soon as the query attends to a key.
FAR_BELOW = tl.constexpr(-1e30)


@triton.jit
def decode_parts(
    q_ptr,  # [ROWS or more, heads, dim]
    cache_ptr,  # [layers, 2, blocks, block_size, kv_heads * dim]
    layer_ptr,  # i32[1]
    tables_ptr,  # i32[ROWS, PAGES]
    parts_ptr,  # i32: see `parts_between`
    sinks_ptr,  # f32[heads], read if HAS_SINKS
    done_ptr,  # i32[ROWS * KV_HEADS or more]: finished parts, zero before and after each call
    out_ptr,  # [ROWS or more, heads, dim]
    lse_ptr,  # f32[ROWS or more, heads]
    partial_ptr,  # f32[PARTS, heads, dim], of rows that have several parts
    partial_lse_ptr,  # f32[PARTS, heads], base 2
    LAYER_STRIDE: tl.constexpr,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    PAGES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PARTS: tl.constexpr,
    SLOTS: tl.constexpr,
    SPLIT: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    CODES: tl.constexpr,
):
    """One program per KV head and slot: the head's query group over one part of a row's or a team's
    context. Programs loop where there are more parts than slots."""
    HEADS: tl.constexpr = KV_HEADS * GROUP
    MOST: tl.constexpr = PARTS // ROWS  # parts of a row
    program = tl.program_id(0)
    head = program % KV_HEADS
    layer = tl.load(layer_ptr).to(tl.int64)
    keys_ptr = cache_ptr + layer * LAYER_STRIDE
    query = tl.arange(0, QUERIES)
    lane = tl.arange(0, PADDED_DIM)
    query_head = head * GROUP + query % GROUP
    count_ptr, total_parts = row_lists(parts_ptr, PARTS)
    for part in tl.range(program // KV_HEADS, total_parts, SLOTS):
        row, low, high = part_fields(parts_ptr, part, PARTS)
        rows = tl.load(parts_ptr + 4 * PARTS + part)
        known = query < rows * GROUP
        real = known[:, None] & (lane < HEAD_DIM)[None, :]
        reader = row + query // GROUP
        at = (reader * HEADS + query_head)[:, None] * HEAD_DIM + lane[None, :]
        q = tl.load(q_ptr + at, mask=real, other=0.0)
        q = as_multiplied(q, cache_ptr.dtype.element_ty, CODES)
        highest, total, mixed = attended(
            q, keys_ptr, head, tables_ptr + row * PAGES, low, high, PLANE_STRIDE,
            BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, QUERIES, HEAD_DIM, PADDED_DIM, TOKENS,
            SCALE, SOFT_CAP, PRECISION, CODES,
        )  # fmt: skip
        if SPLIT and tl.load(count_ptr + row) > 1:
            number = tl.load(parts_ptr + 3 * PARTS + part)
            keep(
                partial_ptr, partial_lse_ptr, (reader * MOST + number) * HEADS + query_head,
                highest, total, mixed, lane, known, real, HEAD_DIM,
            )  # fmt: skip
            known = query < GROUP
            real = known[:, None] & (lane < HEAD_DIM)[None, :]
            for one in tl.range(row, row + rows):
                count = tl.load(count_ptr + one)
                if is_last(done_ptr + one * KV_HEADS + head, count):
                    highest, total, mixed = merged(
                        partial_ptr, partial_lse_ptr, one * MOST, count, query_head, lane, known,
                        real, HEADS, QUERIES, HEAD_DIM, PADDED_DIM,
                    )  # fmt: skip
                    write_row(
                        out_ptr, lse_ptr, sinks_ptr, one * HEADS + query_head, query_head, True,
                        highest, total, mixed, lane, known, real, HEAD_DIM, HAS_SINKS,
                    )  # fmt: skip
        else:
            seen = high > low  # a row of padding has one part, which is empty
            write_row(
                out_ptr, lse_ptr, sinks_ptr, row * HEADS + query_head, query_head, seen,
                highest, total, mixed, lane, known, real, HEAD_DIM, HAS_SINKS,
            )  # fmt: skip


@triton.jit
def part_fields(parts_ptr, part, PARTS: tl.constexpr):
    """Load (row, first token, end token) of a part."""
    row = tl.load(parts_ptr + part)
    low = tl.load(parts_ptr + PARTS + part)
    high = tl.load(parts_ptr + 2 * PARTS + part)
    return row, low, high


@triton.jit
def row_lists(parts_ptr, PARTS: tl.constexpr):
    """Return a pointer to the part count of each row, and the total number of parts."""
    total_ptr = parts_ptr + 5 * PARTS
    return total_ptr + 1, tl.load(total_ptr)


@triton.jit
def keep(
    partial_ptr,
    partial_lse_ptr,
    at,
    highest,
    total,
    mixed,
    lane,
    known,
    real,
    HEAD_DIM: tl.constexpr,
):
    """Store a part's partial output and log-sum-exp for the merge; `at` indexes heads."""
    mixed, lse = normalised(highest, total, mixed)
    tl.store(partial_lse_ptr + at, lse, mask=known)
    tl.store(partial_ptr + at[:, None] * HEAD_DIM + lane[None, :], mixed, mask=real)


@triton.jit
def write_row(
    out_ptr,
    lse_ptr,
    sinks_ptr,
    at,
    query_head,
    seen,
    highest,
    total,
    mixed,
    lane,
    known,
    real,
    HEAD_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Store a row's output, zeros for an empty row; `at` indexes heads."""
    if HAS_SINKS:
        sinks = tl.load(sinks_ptr + query_head, mask=known, other=0.0).to(tl.float32)
        highest, total, mixed = with_sinks(sinks * LOG2_E, highest, total, mixed)
    mixed, lse = normalised(highest, total, mixed)
    tl.store(lse_ptr + at, tl.where(seen, lse / LOG2_E, -float("inf")), mask=known)
    result = tl.where(seen, mixed, 0.0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at[:, None] * HEAD_DIM + lane[None, :], result, mask=real)


@triton.jit
def attended(
    q,
    keys_ptr,
    head,
    table_ptr,
    low,
    high,
    PLANE_STRIDE: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    CODES: tl.constexpr,
):
    """Online softmax of queries [q, d] over tokens `low` to `high` of a row."""
    highest = tl.full([QUERIES], FAR_BELOW, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    q, q_odd = in_two(q, CODES)
    mixed, mixed_odd = nothing_mixed(QUERIES, PADDED_DIM, CODES)
    for begin in tl.range(low, high, TOKENS):
        token = begin + tl.arange(0, TOKENS)
        inside = token < high
        block, slot = blocks_and_slots(table_ptr, token, inside, BLOCK_SIZE)
        keys, key_units = load_heads(
            keys_ptr, head, block, slot, inside,
            BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, CODES,
        )  # fmt: skip
        values, units = load_heads(
            keys_ptr + PLANE_STRIDE, head, block, slot, inside,
            BLOCK_STRIDE, TOKEN_STRIDE, SCALES, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, CODES,
        )  # fmt: skip
        scores = scored(q, q_odd, keys, key_units, SCALE, SOFT_CAP, PRECISION, CODES)
        scores = tl.where(inside[None, :], scores, FAR_BELOW)
        highest, total, mixed, mixed_odd = accumulated(
            scores, values, units, highest, total, mixed, mixed_odd, PRECISION, CODES
        )
    return highest, total, in_one(mixed, mixed_odd, CODES)


@triton.jit
def is_last(done_ptr, count):
    """Whether this program is the last of its row and KV head, with all other parts visible to it.

    The barrier orders all threads' stores before the one thread's release; the program that reads
    the final count acquires them. The counter is reset to zero.
    """
    tl.debug_barrier()
    last = tl.atomic_add(done_ptr, 1, sem="acq_rel", scope="gpu") == count - 1
    if last:
        tl.atomic_xchg(done_ptr, 0, sem="relaxed", scope="gpu")
    return last


@triton.jit
def merged(
    partial_ptr,
    partial_lse_ptr,
    first,
    count,
    query_head,
    lane,
    known,
    real,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """Merge a row's parts by log-sum-exp, in a fixed order."""
    highest = tl.full([QUERIES], FAR_BELOW, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, PADDED_DIM], tl.float32)
    for part in tl.range(first, first + count, loop_unroll_factor=4):
        at = part * HEADS + query_head
        # From L2: another program's stores may not be in this one's L1.
        lse = tl.load(partial_lse_ptr + at, mask=known, other=FAR_BELOW, cache_modifier=".cg")
        at = at[:, None] * HEAD_DIM + lane[None, :]
        some = tl.load(partial_ptr + at, mask=real, other=0.0, cache_modifier=".cg")
        new_highest = tl.maximum(highest, lse)
        shrink = tl.exp2(highest - new_highest)
        weight = tl.exp2(lse - new_highest)
        total = total * shrink + weight
        mixed = mixed * shrink[:, None] + some * weight[:, None]
        highest = new_highest
    return highest, total, mixed


@triton.jit
def normalised(highest, total, mixed):
    """Return the normalised output and the log-sum-exp in base 2."""
    total = tl.where(total > 0.0, total, 1.0)
    return mixed / total[:, None], highest + tl.log2(total)


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
    """Pointers to vectors [tokens, lanes]; `token` is relative to the table's first token."""
    # Not by `blocks_and_slots`: in latent decode on 9.0 another order of these spills registers.
    block = tl.load(table_ptr + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    at = block * BLOCK_STRIDE + token % BLOCK_SIZE * TOKEN_STRIDE
    return plane_ptr + at[:, None] + lane[None, :]


@triton.jit
def blocks_and_slots(table_ptr, token, inside, BLOCK_SIZE: tl.constexpr):
    """Each token's block id and slot in the block; `token` is relative to the table's first
    token."""
    block = tl.load(table_ptr + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    return block, token % BLOCK_SIZE


@triton.jit
def scored(
    q,
    q_odd,
    keys,
    units,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    CODES: tl.constexpr,
):
    """Scores of queries against keys times log2(e); both come from `in_two` and `load_heads`."""
    if CODES == "none":
        scores = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    else:
        scores = tl.dot(q, tl.trans(evens(keys, CODES)))
        scores = tl.dot(q_odd, tl.trans(odds(keys, CODES)), scores) * units
    if SOFT_CAP > 0.0:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), which is right for infinite exponentials too.
        doubled = tl.exp2(scores * (2.0 * SCALE / SOFT_CAP * LOG2_E))
        return (SOFT_CAP * LOG2_E) * (1.0 - 2.0 / (doubled + 1.0))
    return scores * (SCALE * LOG2_E)


@triton.jit
def accumulated(
    scores,
    values,
    units,
    highest,
    total,
    mixed,
    mixed_odd,
    PRECISION: tl.constexpr,
    CODES: tl.constexpr,
):
    """Online softmax update with scores [q, k] (FAR_BELOW where masked) and values of `load_heads`,
    scaled by `units`."""
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    shrink = tl.exp2(highest - new_highest)
    weights = tl.exp2(scores - new_highest[:, None])
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None]
    if CODES == "none":
        mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision=PRECISION)
    else:
        mixed_odd = mixed_odd * shrink[:, None]
        weights = (weights * units).to(tl.bfloat16)
        mixed = tl.dot(weights, evens(values, CODES), mixed)
        mixed_odd = tl.dot(weights, odds(values, CODES), mixed_odd)
    return new_highest, total, mixed, mixed_odd


@triton.jit
def with_sinks(sinks, highest, total, mixed):
    """Online softmax update with one sink logit per query head, whose value is zero."""
    new_highest = tl.maximum(highest, sinks)
    shrink = tl.exp2(highest - new_highest)
    return new_highest, total * shrink + tl.exp2(sinks - new_highest), mixed * shrink[:, None]
