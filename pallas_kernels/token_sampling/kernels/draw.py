"""Triton kernels for sampling: maxima of parts of rows, and the draw."""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.token_sampling.kernels.noise import gumbel
from pallas_kernels.token_sampling.kernels.order import (
    GREEDY_BELOW,
    best_of_row,
    candidate_key,
    load_logits,
    part_range,
)


@triton.jit
def best_of_parts(
    logits_ptr,  # [rows, VOCAB]
    best_ptr,  # f32[rows, PARTS]; +inf if anything is NaN
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per part of a row: its maximum logit."""
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
    """One program per part of a row: its best token after filters and Gumbel noise, with its
    score."""
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
