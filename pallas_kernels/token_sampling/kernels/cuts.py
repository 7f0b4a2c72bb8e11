"""Triton kernels that find the top-k and top-p thresholds of each row without sorting.

One launch sums counts and weights above a few pivots, in parts of rows; they bracket both
thresholds. A second lists the keys within the brackets. A third, one program per row, bisects over
that list.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.token_sampling.kernels.order import (
    GREEDY_BELOW,
    LOWEST_FINITE,
    NEVER,
    amount_of,
    best_of_row,
    candidate_key,
    load_logits,
    order_key,
    part_range,
    share_of,
)

PIVOTS = tl.constexpr(8)
# Words per pivot: a count, and a weight in two halves.
SUMS = tl.constexpr(3)
LOW_BITS = tl.constexpr(31)
LOW_MASK = tl.constexpr(2**31 - 1)


@triton.jit
def add_up_parts(
    logits_ptr,  # [rows, VOCAB]
    best_ptr,  # f32[rows, PARTS]
    temperature_ptr,  # f32[rows]
    top_k_ptr,  # i32[rows]
    top_p_ptr,  # f32[rows]
    min_p_ptr,  # f32[rows]
    sums_ptr,  # i32[rows, PARTS, PIVOTS, SUMS] of what is at or above each pivot
    listed_ptr,  # i32[rows] zeros, for the next kernel
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per part of a row: counts and weights above the pivots. Rows without top-k and
    top-p exit early."""
    program = tl.program_id(0).to(tl.int64)
    row = program // PARTS
    if program % PARTS == 0:
        tl.store(listed_ptr + row, 0)
    temperature, highest, min_p, top_k, top_p = row_settings(
        best_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, VOCAB, PARTS, PADDED_PARTS
    )
    if (top_k > 0) | (top_p < 1.0):
        begin, end = part_range(program % PARTS, VOCAB, PART)
        lane, place = tl.arange(0, BLOCK), tl.arange(0, PIVOTS)
        pivot = pivots(highest)
        members = tl.zeros([BLOCK, PIVOTS], tl.int32)
        weights = tl.zeros([BLOCK, PIVOTS], tl.int64)
        for at in tl.range(begin, end, BLOCK):
            logits = load_logits(logits_ptr + row * VOCAB, at + lane, end)
            key = candidate_key(tl.div_rn(logits, temperature), highest, min_p)
            above = key[:, None] >= pivot[None, :]
            members += above.to(tl.int32)
            weights += tl.where(above, amount_of(key, highest, True)[:, None], 0)
        weight = tl.sum(weights, 0)
        sum_ptr = sums_ptr + (program * PIVOTS + place) * SUMS
        tl.store(sum_ptr, tl.sum(members, 0))
        tl.store(sum_ptr + 1, (weight >> LOW_BITS).to(tl.int32))
        tl.store(sum_ptr + 2, (weight & LOW_MASK).to(tl.int32))


@triton.jit
def list_parts(
    logits_ptr,  # [rows, VOCAB]
    best_ptr,  # f32[rows, PARTS]
    temperature_ptr,  # f32[rows]
    top_k_ptr,  # i32[rows]
    top_p_ptr,  # f32[rows]
    min_p_ptr,  # f32[rows]
    sums_ptr,  # i32[rows, PARTS, PIVOTS, SUMS]
    listed_ptr,  # i32[rows] the length of each list
    list_ptr,  # i32[rows, VOCAB] the keys in range, in any order
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per part of a row: lists its order keys within the brackets."""
    program = tl.program_id(0).to(tl.int64)
    row = program // PARTS
    temperature, highest, min_p, top_k, top_p = row_settings(
        best_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, VOCAB, PARTS, PADDED_PARTS
    )
    if (top_k > 0) | (top_p < 1.0):
        begin, end = part_range(program % PARTS, VOCAB, PART)
        lane = tl.arange(0, BLOCK)
        members, weights = sums_of_row(sums_ptr, row, PARTS, PADDED_PARTS)
        low, high = range_of_cuts(pivots(highest), members, weights, highest, top_k, top_p)
        for at in tl.range(begin, end, BLOCK):
            logits = load_logits(logits_ptr + row * VOCAB, at + lane, end)
            key = candidate_key(tl.div_rn(logits, temperature), highest, min_p)
            inside = ((key >= low) & (key < high)).to(tl.int32)
            count = tl.sum(inside, 0)
            if count > 0:
                first = tl.atomic_add(listed_ptr + row, count, sem="relaxed")
                where = row * VOCAB + first + tl.cumsum(inside, 0) - 1
                tl.store(list_ptr + where, key, mask=inside > 0)


@triton.jit
def find_cuts(
    logits_ptr,  # [rows, VOCAB]
    best_ptr,  # f32[rows, PARTS]
    temperature_ptr,  # f32[rows]
    top_k_ptr,  # i32[rows]
    top_p_ptr,  # f32[rows]
    min_p_ptr,  # f32[rows]
    sums_ptr,  # i32[rows, PARTS, PIVOTS, SUMS]
    listed_ptr,  # i32[rows]
    list_ptr,  # i32[rows, VOCAB]
    threshold_ptr,  # i32[rows]: tokens with a higher order key stay,
    last_ptr,  # i32[rows]: and those with an equal one up to this index
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row: bisects for the top-k threshold, then for top-p of what remains."""
    row = tl.program_id(0).to(tl.int64)
    temperature, highest, min_p, top_k, top_p = row_settings(
        best_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, row, VOCAB, PARTS, PADDED_PARTS
    )
    threshold = tl.full([], LOWEST_FINITE, tl.int32)
    last = tl.full([], VOCAB, tl.int32)
    if (top_k > 0) | (top_p < 1.0):
        keys_ptr, listed = list_ptr + row * VOCAB, tl.load(listed_ptr + row)
        pivot = pivots(highest)
        members, weights = sums_of_row(sums_ptr, row, PARTS, PADDED_PARTS)
        surplus = tl.full([], 0, tl.int64)
        room = tl.full([], VOCAB, tl.int64)
        total = tl.max(weights, 0)
        if top_k > 0:
            target = top_k.to(tl.int64)
            low, high, above = bracket(pivot, members, highest, target)
            threshold, room, surplus = search(
                keys_ptr, listed, highest, low, high, above, target, False, BLOCK
            )
            outside = tl.max(tl.where(pivot >= high, weights, 0), 0)
            within, _ = amounts_between(keys_ptr, listed, highest, threshold, high, True, BLOCK)
            # With a surplus, tokens equal the threshold, so it has a weight.
            total = outside + within - surplus * amount_of(threshold, highest, True)
        if top_p < 1.0:
            target = share_of(total, top_p)
            low, high, above = bracket(pivot, weights, highest, target)
            threshold, room, surplus = search(
                keys_ptr, listed, highest, tl.maximum(low, threshold), high, above, target, True,
                BLOCK,
            )  # fmt: skip
        if surplus > 0:
            row_ptr = logits_ptr + row * VOCAB
            last = index_of_tie(row_ptr, temperature, highest, min_p, threshold, room, VOCAB, BLOCK)
    tl.store(threshold_ptr + row, threshold)
    tl.store(last_ptr + row, last)


@triton.jit
def row_settings(
    best_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    row,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
):
    """Load temperature, highest scaled logit, min-p, top-k (0: off) and top-p (1: off) of a row.
    Both are off for greedy and invalid rows."""
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    highest = best_of_row(best_ptr, row, PARTS, PADDED_PARTS)
    drawn = (tl.abs(highest) < float("inf")) & (temperature >= GREEDY_BELOW)
    temperature = tl.where(drawn, temperature, 1.0)
    top_k = tl.where(drawn & (top_k > 0) & (top_k < VOCAB), top_k, 0)
    top_p = tl.where(drawn, tl.load(top_p_ptr + row), 1.0)
    return temperature, tl.div_rn(highest, temperature), tl.load(min_p_ptr + row), top_k, top_p


@triton.jit
def pivots(highest):
    """Pivots as order keys: the lowest finite, the next above it, then 16, 8, ... 0.5 below the
    best."""
    place = tl.arange(0, PIVOTS)
    below = order_key(highest - tl.exp2(6.0 - place.to(tl.float32)))
    return tl.where(place < 2, LOWEST_FINITE + place, tl.maximum(below, LOWEST_FINITE))


@triton.jit
def sums_of_row(sums_ptr, row, PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr):
    """Number and total weight (int64) of a row's tokens at or above each pivot."""
    part = tl.arange(0, PADDED_PARTS)[:, None]
    at = sums_ptr + ((row * PARTS + part) * PIVOTS + tl.arange(0, PIVOTS)[None, :]) * SUMS
    known = part < PARTS
    members = tl.load(at, mask=known, other=0).to(tl.int64)
    large = tl.load(at + 1, mask=known, other=0).to(tl.int64)
    small = tl.load(at + 2, mask=known, other=0).to(tl.int64)
    return tl.sum(members, 0), tl.sum((large << LOW_BITS) + small, 0)


@triton.jit
def bracket(pivot, amounts, highest, target):
    """Return the two pivots around the largest key with at least `target` at or above it, and the
    amount above the upper one. If even all tokens are too few (top-k > vocab), the lowest pivot."""
    enough = (amounts >= target) | (tl.arange(0, PIVOTS) == 0)
    low = tl.max(tl.where(enough, pivot, LOWEST_FINITE), 0)
    high = tl.min(tl.where(enough, order_key(highest) + 1, pivot), 0)
    return low, high, tl.max(tl.where(enough, 0, amounts), 0)


@triton.jit
def range_of_cuts(pivot, members, weights, highest, top_k, top_p):
    """Range of keys that contains both thresholds. The top-p bracket depends on the mass that top-k
    leaves, which is known only within top-k's own bracket."""
    low = order_key(highest) + 1
    high = tl.full([], LOWEST_FINITE, tl.int32)
    most = tl.max(weights, 0)
    least = most
    if top_k > 0:
        low, high, _ = bracket(pivot, members, highest, top_k.to(tl.int64))
        most = tl.min(tl.where(pivot <= low, weights, most), 0)
        least = tl.max(tl.where(pivot >= high, weights, 0), 0)
    if top_p < 1.0:
        lower, _, _ = bracket(pivot, weights, highest, share_of(most, top_p))
        _, upper, _ = bracket(pivot, weights, highest, share_of(least, top_p))
        low, high = tl.minimum(low, lower), tl.maximum(high, upper)
    return low, high


@triton.jit
def search(
    keys_ptr,
    listed,
    highest,
    low,
    high,
    above,
    target,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Bisect for the largest key in [low, high) with enough at or above it.

    `above` is the amount at or above `high`; enough is `target` tokens or weight. Returns the key,
    and how many of its ties stay and go.
    """
    end, outside = high, above
    _, most = amounts_between(keys_ptr, listed, highest, low, end, WEIGHTED, BLOCK)
    fewest = most * 0  # at or above high, and before the end
    while (low + 1 < high) & (most - fewest > 1):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        amount, members = amounts_between(keys_ptr, listed, highest, middle, end, WEIGHTED, BLOCK)
        amount += outside
        reached = amount >= target
        low = tl.where(reached, middle, low)
        most = tl.where(reached, members, most)
        high = tl.where(reached, high, middle)
        fewest = tl.where(reached, fewest, members)
        above = tl.where(reached, above, amount)
    ties = (most - fewest).to(tl.int64)
    # With several ties, low is their key. A single one stays, and low may be below it.
    weight = tl.maximum(amount_of(low, highest, WEIGHTED), 1)
    room = tl.where(ties > 1, (target - above + weight - 1) // weight, 1)
    return low, room, tl.maximum(ties - room, 0)


@triton.jit
def amounts_between(
    keys_ptr, listed, highest, low, high, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):
    """Amount and number of listed keys in [low, high)."""
    lane = tl.arange(0, BLOCK)
    amounts = tl.zeros([BLOCK], tl.int64)
    members = tl.zeros([BLOCK], tl.int32)
    for at in tl.range(0, listed, BLOCK):
        key = tl.load(keys_ptr + at + lane, mask=at + lane < listed, other=NEVER)
        inside = (key >= low) & (key < high)
        amounts += tl.where(inside, amount_of(key, highest, WEIGHTED), 0)
        members += inside.to(tl.int32)
    return tl.sum(amounts, 0), tl.sum(members, 0)


@triton.jit
def index_of_tie(
    row_ptr, temperature, highest, min_p, threshold, room, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """Index of the last token tied with the threshold that is kept."""
    lane = tl.arange(0, BLOCK)
    last = tl.full([], -1, tl.int32)
    before = tl.full([], 0, tl.int32)
    for at in tl.range(0, VOCAB, BLOCK):
        logits = tl.div_rn(load_logits(row_ptr, at + lane, VOCAB), temperature)
        tied = (candidate_key(logits, highest, min_p) == threshold).to(tl.int32)
        number = before + tl.cumsum(tied, 0)
        has_room = (tied > 0) & (number <= room)
        last = tl.maximum(last, tl.max(tl.where(has_room, at + lane, -1), 0))
        before += tl.sum(tied, 0)
    return last
