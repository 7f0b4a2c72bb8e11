"""Triton kernels of recurrent steps: a program owns some columns or rows of one head's state.

It reads and writes them once, in float32, independently of other programs, so rows may run in any
order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def delta_heads(
    states_ptr,  # f32[layers, UNITS, HEADS, SHARE, KEY, VALUE], written in place
    layer_ptr,  # i32[1]
    reads_ptr,  # i32[rows]; negative: the state is zero
    writes_ptr,  # i32[rows]; out of range: padding row
    qkv_ptr,  # [rows, HEADS, 2 * KEY + SHARE * VALUE]
    dt_ptr,  # [rows, HEADS, SHARE]
    beta_ptr,  # [rows, HEADS, SHARE]
    rate_logs_ptr,  # [HEADS, SHARE]
    dt_bias_ptr,  # [HEADS, SHARE]
    out_ptr,  # f32[rows, HEADS, SHARE, VALUE]
    UNITS: tl.constexpr,
    HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    KEY: tl.constexpr,
    PADDED_KEY: tl.constexpr,
    VALUE: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    SCALE: tl.constexpr,
    EPS: tl.constexpr,
):
    """One program per row, value head and tile of columns."""
    program = tl.program_id(0)
    owner = program // TILES  # the head of values, over all rows
    row = owner // (HEADS * SHARE)
    head = owner % (HEADS * SHARE)  # of values, over all heads of keys
    lane = tl.arange(0, PADDED_KEY)
    column = program % TILES * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_value = lane < KEY, column < VALUE
    inside = is_key[:, None] & is_value[None, :]
    out_at = out_ptr + owner.to(tl.int64) * VALUE + column
    write = tl.load(writes_ptr + row)
    if (write < 0) | (write >= UNITS):
        tl.store(out_at, tl.zeros([COLUMNS], tl.float32), mask=is_value)
        return
    read = tl.load(reads_ptr + row)
    first = tl.load(layer_ptr).to(tl.int64) * UNITS
    matrix = head * (KEY * VALUE) + lane[:, None] * VALUE + column[None, :]
    unit_size = HEADS * SHARE * KEY * VALUE
    state = tl.zeros([PADDED_KEY, COLUMNS], tl.float32)
    if read >= 0:
        state_at = states_ptr + (first + read) * unit_size + matrix
        state = tl.load(state_at, mask=inside, other=0.0)

    qkv_at = qkv_ptr + (owner // SHARE).to(tl.int64) * (2 * KEY + SHARE * VALUE)
    q = tl.load(qkv_at + lane, mask=is_key, other=0.0).to(tl.float32)
    k = tl.load(qkv_at + KEY + lane, mask=is_key, other=0.0).to(tl.float32)
    v_at = qkv_at + 2 * KEY + owner % SHARE * VALUE
    v = tl.load(v_at + column, mask=is_value, other=0.0).to(tl.float32)
    q = q * tl.rsqrt(tl.sum(q * q, 0) + EPS) * SCALE
    k = k * tl.rsqrt(tl.sum(k * k, 0) + EPS)
    dt = tl.load(dt_ptr + owner).to(tl.float32) + tl.load(dt_bias_ptr + head).to(tl.float32)
    rate = -tl.exp(tl.load(rate_logs_ptr + head).to(tl.float32))
    share = tl.sigmoid(tl.load(beta_ptr + owner).to(tl.float32))

    state = state * tl.exp(softplus(dt) * rate)
    change = (v - tl.sum(k[:, None] * state, 0)) * share
    state = state + k[:, None] * change[None, :]
    tl.store(out_at, tl.sum(q[:, None] * state, 0), mask=is_value)
    tl.store(states_ptr + (first + write) * unit_size + matrix, state, mask=inside)


@triton.jit
def state_space_heads(
    states_ptr,  # f32[layers, UNITS, HEADS, DIM, SIZE], written in place
    layer_ptr,  # i32[1]
    reads_ptr,  # i32[rows]; negative: the state is zero
    writes_ptr,  # i32[rows]; out of range: padding row
    x_ptr,  # [rows, HEADS, DIM]
    keys_ptr,  # [rows, 2, GROUPS, SIZE]
    groups_ptr,  # i32[HEADS]
    dt_ptr,  # [rows, HEADS]
    rate_logs_ptr,  # [HEADS]
    dt_bias_ptr,  # [HEADS]
    out_ptr,  # f32[rows, HEADS, DIM]
    UNITS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    DIM: tl.constexpr,
    LINES: tl.constexpr,
    TILES: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
):
    """One program per row, head and tile of state lines, each as long as a key."""
    program = tl.program_id(0)
    owner = program // TILES  # the head, over all rows
    row = owner // HEADS
    head = owner % HEADS
    line = program % TILES * LINES + tl.arange(0, LINES)
    lane = tl.arange(0, PADDED_SIZE)
    is_line, is_lane = line < DIM, lane < SIZE
    inside = is_line[:, None] & is_lane[None, :]
    x_at = owner.to(tl.int64) * DIM + line
    write = tl.load(writes_ptr + row)
    if (write < 0) | (write >= UNITS):
        tl.store(out_ptr + x_at, tl.zeros([LINES], tl.float32), mask=is_line)
        return
    read = tl.load(reads_ptr + row)
    first = tl.load(layer_ptr).to(tl.int64) * UNITS
    matrix = head * (DIM * SIZE) + line[:, None] * SIZE + lane[None, :]
    unit_size = HEADS * DIM * SIZE
    state = tl.zeros([LINES, PADDED_SIZE], tl.float32)
    if read >= 0:
        state_at = states_ptr + (first + read) * unit_size + matrix
        state = tl.load(state_at, mask=inside, other=0.0)

    keys_at = keys_ptr + (row.to(tl.int64) * (2 * GROUPS) + tl.load(groups_ptr + head)) * SIZE
    b = tl.load(keys_at + lane, mask=is_lane, other=0.0).to(tl.float32)
    c = tl.load(keys_at + GROUPS * SIZE + lane, mask=is_lane, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + x_at, mask=is_line, other=0.0).to(tl.float32)
    dt = tl.load(dt_ptr + owner).to(tl.float32) + tl.load(dt_bias_ptr + head).to(tl.float32)
    size = tl.minimum(tl.maximum(softplus(dt), SHORTEST), LONGEST)
    rate = -tl.exp(tl.load(rate_logs_ptr + head).to(tl.float32))

    state = state * tl.exp(size * rate) + (x * size)[:, None] * b[None, :]
    tl.store(out_ptr + x_at, tl.sum(state * c[None, :], 1), mask=is_line)
    tl.store(states_ptr + (first + write) * unit_size + matrix, state, mask=inside)


@triton.jit
def softplus(x):
    """log(1 + exp(x)), accurate where 1 + exp(x) rounds to 1."""
    below = tl.exp(-tl.abs(x))
    above_one = 1.0 + below
    # The quotient corrects for what was lost in the sum: below / (above_one - 1) is nearly 1.
    exact = tl.log(above_one) * (below / tl.maximum(above_one - 1.0, 1e-30))
    return tl.maximum(x, 0.0) + tl.where(above_one == 1.0, below, exact)
