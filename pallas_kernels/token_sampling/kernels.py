"""Triton kernels for token sampling: best logits of parts of rows, top-k and top-p cuts, the draw.

A cut is found without sorting. Floats are compared as integers of the same order; weights relative
to the best token are whole multiples of 2^-35, so that sums of them do not depend on their order:
the division of a row among programs and passes cannot change which tokens stay.
"""

from __future__ import annotations

import triton
import triton.language as tl

GREEDY_BELOW = tl.constexpr(1e-5)
LOWEST_FINITE = tl.constexpr(-0x7F800000)  # order key of the most negative finite float32
NEVER = tl.constexpr(-0x80000000)  # below every order key
# The sum of a quarter of a million such weights is exact in float64.
WEIGHT_OF_BEST = tl.constexpr(2.0**35)


@triton.jit
def best_of_parts(
    logits_ptr,  # [rows, VOCAB]
    best_ptr,  # f32[rows, PARTS]; +inf if anything is NaN
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per part of a row: its highest logit."""
    program = tl.program_id(0).to(tl.int64)
    begin, end = part_range(program % PARTS, VOCAB, PART)
    row_ptr = logits_ptr + program // PARTS * VOCAB
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    for at in tl.range(begin, end, BLOCK):
        logits = load_logits(row_ptr, at + lane, end)
        best = tl.maximum(best, tl.where(logits != logits, float("inf"), logits))
    tl.store(best_ptr + program, tl.max(best, 0))


@triton.jit
def find_cuts(
    logits_ptr,  # [rows, VOCAB]
    best_ptr,  # f32[rows, PARTS]
    temperature_ptr,  # f32[rows]
    top_k_ptr,  # i32[rows]
    top_p_ptr,  # f32[rows]
    min_p_ptr,  # f32[rows]
    threshold_ptr,  # i32[rows]: tokens with a higher order key stay,
    last_ptr,  # i32[rows]: and those with an equal one up to this index
    list_ptr,  # i32[rows, VOCAB], scratch
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row: its top-k and top-p cuts. Rows without them return early."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    highest = best_of_row(best_ptr, row, PARTS, PADDED_PARTS)
    usable = tl.abs(highest) < float("inf")
    limit_k = (top_k > 0) & (top_k < VOCAB)
    threshold = tl.full([], LOWEST_FINITE, tl.int32)
    last = tl.full([], VOCAB, tl.int32)
    if usable & (temperature >= GREEDY_BELOW) & (limit_k | (top_p < 1.0)):
        row_ptr = logits_ptr + row * VOCAB
        row_list_ptr = list_ptr + row * VOCAB
        highest = tl.div_rn(highest, temperature)
        surplus = tl.full([], 0, tl.int64)
        room = tl.full([], VOCAB, tl.int64)
        if limit_k:
            threshold, room, surplus = search(
                row_ptr, row_list_ptr, temperature, highest, min_p,
                threshold, surplus, top_k, top_p, False, VOCAB, BLOCK,
            )  # fmt: skip
        if top_p < 1.0:
            threshold, room, surplus = search(
                row_ptr, row_list_ptr, temperature, highest, min_p,
                threshold, surplus, top_k, top_p, True, VOCAB, BLOCK,
            )  # fmt: skip
        if surplus > 0:
            last = index_of_tie(row_ptr, temperature, highest, min_p, threshold, room, VOCAB, BLOCK)
    tl.store(threshold_ptr + row, threshold)
    tl.store(last_ptr + row, last)


@triton.jit
def draw_from_parts(
    logits_ptr,  # [rows, VOCAB]
    best_ptr,  # f32[rows, PARTS]
    keys_ptr,  # u32[rows, 2]
    temperature_ptr,  # f32[rows]
    min_p_ptr,  # f32[rows]
    threshold_ptr,  # i32[rows]
    last_ptr,  # i32[rows]
    score_ptr,  # f32[rows, PARTS]
    token_ptr,  # i32[rows, PARTS], -1 if the row cannot be used
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per part of a row: its best token after cut and noise, and that token's score."""
    program = tl.program_id(0).to(tl.int64)
    row = program // PARTS
    begin, end = part_range(program % PARTS, VOCAB, PART)
    row_ptr = logits_ptr + row * VOCAB
    temperature = tl.load(temperature_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    threshold = tl.load(threshold_ptr + row)
    last = tl.load(last_ptr + row)
    first_word = tl.load(keys_ptr + 2 * row)
    second_word = tl.load(keys_ptr + 2 * row + 1)
    highest = best_of_row(best_ptr, row, PARTS, PADDED_PARTS)
    usable = tl.abs(highest) < float("inf")
    random = temperature >= GREEDY_BELOW
    temperature = tl.where(random, temperature, 1.0)
    highest = tl.div_rn(highest, temperature)
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    chosen = tl.full([BLOCK], VOCAB, tl.int32)
    for at in tl.range(begin, end, BLOCK):
        index = (at + lane).to(tl.int32)
        score = load_logits(row_ptr, index, end)
        if random:
            score = tl.div_rn(score, temperature)
            key = candidate_key(score, highest, min_p)
            stays = (key > threshold) | ((key == threshold) & (index <= last))
            score = tl.where(stays, score, -float("inf"))
            if tl.max(stays.to(tl.int32), 0) > 0:
                score += gumbel(first_word, second_word, index)
        better = score > best
        best = tl.where(better, score, best)
        chosen = tl.where(better, index, chosen)
    score = tl.max(best, 0)
    token = tl.min(tl.where(best == score, chosen, VOCAB), 0)
    tl.store(score_ptr + program, score)
    tl.store(token_ptr + program, tl.where(usable, token, -1))


@triton.jit
def search(
    row_ptr,
    list_ptr,
    temperature,
    highest,
    min_p,
    floor,
    surplus,
    top_k,
    top_p,
    WEIGHTED: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest order key, not below the floor, that leaves enough at or above it.

    Enough are top_k tokens, or top_p of the weight of what is left by a cut at the floor, where
    `surplus` tokens that equal the floor are cut off too. Returns the key, how many of the tokens
    equal to it stay, and how many do not. One pass over the row finds a range of keys, one lists
    the keys in it; the rest is bisection over the list.
    """
    PIVOTS: tl.constexpr = 8
    lane = tl.arange(0, BLOCK)
    place = tl.arange(0, PIVOTS)
    # The floor and what is above it, then 16, 8, ... 0.5 below the best.
    pivot = order_key(highest - tl.exp2(6.0 - place.to(tl.float32)))
    pivot = tl.where(place < 2, floor + place, tl.maximum(pivot, floor))
    amounts = tl.zeros([BLOCK, PIVOTS], tl.int64)
    for at in tl.range(0, VOCAB, BLOCK):
        logits = tl.div_rn(load_logits(row_ptr, at + lane, VOCAB), temperature)
        key = candidate_key(logits, highest, min_p)
        amount = amount_of(key, highest, WEIGHTED)
        amounts += tl.where(key[:, None] >= pivot[None, :], amount[:, None], 0)
    amounts = tl.sum(amounts, 0)
    target = top_k.to(tl.int64)
    if WEIGHTED:
        total = tl.sum(tl.where(place == 0, amounts, 0), 0)
        # With a surplus some tokens equal the floor, so the floor is the key of a real weight.
        total -= surplus * amount_of(floor, highest, WEIGHTED)
        target = share_of(total, top_p)
    # If even the floor leaves too few, there are fewer tokens than top_k, and it is used.
    enough = (amounts >= target) | (place == 0)
    low = tl.max(tl.where(enough, pivot, floor), 0)
    high = tl.min(tl.where(enough, order_key(highest) + 1, pivot), 0)
    above = tl.max(tl.where(enough, 0, amounts), 0)

    listed = list_keys(row_ptr, list_ptr, temperature, highest, min_p, low, high, VOCAB, BLOCK)
    outside = above  # at or above the end of the list
    most = listed  # in the list, at or above low
    fewest = listed * 0  # in the list, at or above high
    while (low + 1 < high) & (most - fewest > 1):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        some_amounts = tl.zeros([BLOCK], tl.int64)
        some_members = tl.zeros([BLOCK], tl.int32)
        for at in tl.range(0, listed, BLOCK):
            key = tl.load(list_ptr + at + lane, mask=at + lane < listed, other=NEVER)
            inside = key >= middle
            some_amounts += tl.where(inside, amount_of(key, highest, WEIGHTED), 0)
            some_members += inside.to(tl.int32)
        amount = outside + tl.sum(some_amounts, 0)
        members = tl.sum(some_members, 0)
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
def list_keys(
    row_ptr,
    list_ptr,
    temperature,
    highest,
    min_p,
    low,
    high,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a row's order keys in [low, high) one after the other; returns their number."""
    lane = tl.arange(0, BLOCK)
    listed = tl.full([], 0, tl.int32)
    tl.debug_barrier()  # the list before this one has been read
    for at in tl.range(0, VOCAB, BLOCK):
        logits = tl.div_rn(load_logits(row_ptr, at + lane, VOCAB), temperature)
        key = candidate_key(logits, highest, min_p)
        inside = ((key >= low) & (key < high)).to(tl.int32)
        tl.store(list_ptr + listed + tl.cumsum(inside, 0) - 1, key, mask=inside > 0)
        listed += tl.sum(inside, 0)
    tl.debug_barrier()  # all threads see the list
    return listed


@triton.jit
def index_of_tie(
    row_ptr, temperature, highest, min_p, threshold, room, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """Index of the last token equal to the threshold that stays."""
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


@triton.jit
def part_range(part, VOCAB: tl.constexpr, PART: tl.constexpr):
    """First index of a part of a row, and the one past its last; late parts may be empty."""
    begin = (part * PART).to(tl.int32)
    return begin, tl.minimum(begin + PART, VOCAB)


@triton.jit
def load_logits(row_ptr, index, end):
    """Logits as float32, -inf past the end."""
    return tl.load(row_ptr + index, mask=index < end, other=-float("inf")).to(tl.float32)


@triton.jit
def best_of_row(best_ptr, row, PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr):
    """The highest logit; infinite if the row cannot be used."""
    part = tl.arange(0, PADDED_PARTS)
    best = tl.load(best_ptr + row * PARTS + part, mask=part < PARTS, other=-float("inf"))
    return tl.max(best, 0)


@triton.jit
def order_key(logits):
    """int32 that orders like the floats, with -0 equal to 0."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def candidate_key(logits, highest, min_p):
    """The order key, or NEVER for a token that is -inf or that min-p cuts off."""
    possible = tl.exp(logits - highest) >= tl.minimum(min_p, 1.0)
    possible = possible & (logits > -float("inf"))
    return tl.where(possible, order_key(logits), NEVER)


@triton.jit
def amount_of(key, highest, WEIGHTED: tl.constexpr):
    """What a token with this order key counts: 1, or its weight as a whole number."""
    if WEIGHTED:
        bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
        weight = tl.exp(bits.to(tl.float32, bitcast=True) - highest)
        # NEVER is not the key of a number and has no weight.
        weight = tl.where(key >= LOWEST_FINITE, weight, 0.0)
        return (weight * WEIGHT_OF_BEST + 0.5).to(tl.int64)
    return (key * 0 + 1).to(tl.int64)


@triton.jit
def share_of(total, top_p):
    """The smallest whole number, 1 or more, that is at least top_p of the total."""
    share = tl.maximum(top_p, 0.0).to(tl.float64) * total.to(tl.float64)
    whole = share.to(tl.int64)
    whole += (whole.to(tl.float64) < share).to(tl.int64)
    return tl.maximum(whole, 1)


@triton.jit
def gumbel(first_word, second_word, index):
    """Finite Gumbel noise from 32 random bits per index, which resolve large values."""
    bits = random_bits(first_word, second_word, index.to(tl.uint32))
    uniform = tl.minimum((bits.to(tl.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    # log(1 - u), corrected for the rounding of 1 - u by the quotient.
    rest = 1.0 - uniform
    lost = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    negative_log = tl.where(rest == 1.0, uniform, -tl.log(rest) * tl.div_rn(uniform, lost))
    return -tl.log(negative_log)


@triton.jit
def random_bits(first_word, second_word, index):
    """Threefry-2x32 of the counter (0, index), its two words combined, as jax.random.bits does."""
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
    """Four of threefry's rounds."""
    x, y = one_round(x, y, FIRST)
    x, y = one_round(x, y, SECOND)
    x, y = one_round(x, y, THIRD)
    return one_round(x, y, FOURTH)


@triton.jit
def one_round(x, y, TURN: tl.constexpr):
    """Add, rotate, combine."""
    x = x + y
    y = (y << TURN) | (y >> (32 - TURN))
    return x, y ^ x
