"""Triton kernels of grouped matmuls: counting sort of rows by group, and tiled matmuls."""

from __future__ import annotations

import triton
import triton.language as tl

# Numbers of one entry of the tile map.
ENTRY = tl.constexpr(4)


@triton.jit
def count_parts(
    groups_ptr,  # i32[ROWS]
    counts_ptr,  # i32[PARTS, BINS]
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    BINS: tl.constexpr,
    PART: tl.constexpr,
):
    """One program per part: histogram of its rows' groups, padding counted as an extra group."""
    part = tl.program_id(0)
    row = part * PART + tl.arange(0, PART)
    counts = counted(groups_ptr, row, row < ROWS, GROUPS, BINS)
    tl.store(counts_ptr + part * BINS + tl.arange(0, BINS), counts)


@triton.jit
def place_rows(
    groups_ptr,  # i32[ROWS]
    counts_ptr,  # i32[PARTS, BINS], read if there are several parts
    order_ptr,  # i32[ROWS]
    sizes_ptr,  # i32[GROUPS]
    map_ptr,  # i32[TILES, ENTRY]
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    BINS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_AT_ONCE: tl.constexpr,
    PLACED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILES: tl.constexpr,
    MAPPED: tl.constexpr,
):
    """One program per PLACED rows: writes their positions in the order and MAPPED entries of the
    tile map. The sort is stable."""
    program = tl.program_id(0)
    first = program * PLACED
    own_part = first // PART
    in_part = own_part * PART + tl.arange(0, PART)
    # Of each group: rows in all, and rows before this program's.
    before = counted(groups_ptr, in_part, in_part < first, GROUPS, BINS)
    if PARTS == 1:
        total = counted(groups_ptr, in_part, in_part < ROWS, GROUPS, BINS)
    else:
        total = tl.zeros([BINS], tl.int32)
        bins = tl.arange(0, BINS)[None, :]
        for begin in range(0, PARTS, PARTS_AT_ONCE):
            part = begin + tl.arange(0, PARTS_AT_ONCE)[:, None]
            counts = tl.load(counts_ptr + part * BINS + bins, mask=part < PARTS, other=0)
            total += tl.sum(counts, 0)
            before += tl.sum(tl.where(part < own_part, counts, 0), 0)
    end = tl.cumsum(total, 0)
    start = end - total

    local = tl.arange(0, PLACED)
    row = first + local
    group = group_of(groups_ptr, row, row < ROWS, GROUPS)
    equal = group[:, None] == group[None, :]
    rank = tl.sum((equal & (local[None, :] < local[:, None])).to(tl.int32), 1)
    place = tl.gather(start + before, group, 0) + rank
    tl.store(order_ptr + place, row, mask=row < ROWS)

    tiles = (total + TILE_ROWS - 1) // TILE_ROWS
    tile_end = tl.cumsum(tiles, 0)
    entry = program * MAPPED + tl.arange(0, MAPPED)
    owner = tl.sum((tile_end[None, :] <= entry[:, None]).to(tl.int32), 1)
    used = owner < BINS
    owner = tl.minimum(owner, BINS - 1)
    at = map_ptr + entry * ENTRY
    stored = entry < TILES
    tl.store(at, tl.where(used, owner, -1), mask=stored)
    tl.store(at + 1, tl.gather(start, owner, 0), mask=stored)
    tl.store(at + 2, tl.gather(end, owner, 0), mask=stored)
    tl.store(at + 3, tl.gather(tile_end - tiles, owner, 0), mask=stored)
    if program == 0:
        bin = tl.arange(0, BINS)
        tl.store(sizes_ptr + bin, total, mask=bin < GROUPS)


@triton.jit
def counted(groups_ptr, row, wanted, GROUPS: tl.constexpr, BINS: tl.constexpr):
    """Histogram of the groups of the wanted rows."""
    return tl.histogram(group_of(groups_ptr, row, wanted, GROUPS), BINS, mask=wanted)


@triton.jit
def group_of(groups_ptr, row, wanted, GROUPS: tl.constexpr):
    """Group of each row; rows without one get the padding group."""
    group = tl.load(groups_ptr + row, mask=wanted, other=GROUPS)
    return tl.where((group < 0) | (group > GROUPS), GROUPS, group)


@triton.jit
def multiply_tiles(
    x_ptr,  # [ROWS / CHOICES, DEPTH] if GATHERED, else [ROWS, DEPTH] in order
    weight_ptr,  # [GROUPS, DEPTH, COLUMNS]
    order_ptr,  # i32[ROWS]
    map_ptr,  # i32[TILES, ENTRY]
    scale_ptr,  # f32[ROWS], read if SCATTERED
    out_ptr,  # [ROWS, COLUMNS], half of the columns with an ACTIVATION
    GROUPS: tl.constexpr,
    CHOICES: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    BAND: tl.constexpr,
    GATHERED: tl.constexpr,
    SCATTERED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per row tile of a group and column tile.

    Programs of up to BAND row tiles are adjacent per column tile, to hit the weights in L2.
    """
    COLUMN_TILES: tl.constexpr = (COLUMNS + TILE_COLUMNS - 1) // TILE_COLUMNS
    program = tl.program_id(0)
    entry_ptr = map_ptr + program // COLUMN_TILES * ENTRY
    group = tl.load(entry_ptr)
    if group < 0:
        return
    row, end, first_column = place_of(
        program, entry_ptr, COLUMN_TILES, TILE_ROWS, TILE_COLUMNS, BAND
    )
    real = row < end
    pair = row
    if GATHERED or SCATTERED:
        pair = tl.load(order_ptr + row, mask=real, other=0)

    total = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    if group < GROUPS:
        source = pair // CHOICES if GATHERED else row
        depth = tl.arange(0, TILE_DEPTH)
        column = first_column + tl.arange(0, TILE_COLUMNS)
        inside = column < COLUMNS
        x_at = x_ptr + source.to(tl.int64)[:, None] * DEPTH + depth[None, :]
        weight_ptr += group.to(tl.int64) * (DEPTH * COLUMNS)
        weight_at = weight_ptr + depth[:, None] * COLUMNS + column[None, :]
        for begin in range(0, DEPTH, TILE_DEPTH):
            x_mask = real[:, None]
            weight_mask = inside[None, :]
            if DEPTH % TILE_DEPTH != 0:
                left = begin + depth < DEPTH
                x_mask = x_mask & left[None, :]
                weight_mask = weight_mask & left[:, None]
            x = tl.load(x_at, mask=x_mask, other=0.0)
            if COLUMNS % TILE_COLUMNS == 0 and DEPTH % TILE_DEPTH == 0:
                weight = tl.load(weight_at)
            else:
                weight = tl.load(weight_at, mask=weight_mask, other=0.0)
            total = tl.dot(x, weight, total, input_precision=PRECISION)
            x_at += TILE_DEPTH
            weight_at += TILE_DEPTH * COLUMNS

    finish(
        out_ptr, scale_ptr, total, pair, row, real, first_column, COLUMNS, TILE_ROWS, TILE_COLUMNS,
        SCATTERED, ACTIVATION,
    )  # fmt: skip


@triton.jit
def place_of(
    program, entry_ptr, COLUMN_TILES: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Return a program's rows, the end of its group's rows, and its first column."""
    start = tl.load(entry_ptr + 1)
    end = tl.load(entry_ptr + 2)
    first_tile = tl.load(entry_ptr + 3)
    # Column by column within a band of tiles of the group.
    in_group = program - first_tile * COLUMN_TILES
    tiles = (end - start + TILE_ROWS - 1) // TILE_ROWS
    band_first = in_group // (BAND * COLUMN_TILES) * BAND
    band_tiles = tl.minimum(tiles - band_first, BAND)
    in_band = in_group - band_first * COLUMN_TILES
    row = start + (band_first + in_band % band_tiles) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    return row, end, in_band // band_tiles * TILE_COLUMNS


@triton.jit
def finish(
    out_ptr, scale_ptr, total, pair, row, real, first_column, COLUMNS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, SCATTERED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Scale or activate a tile's sums and store them."""
    if SCATTERED:
        total *= tl.load(scale_ptr + pair, mask=real, other=0.0)[:, None]
    if ACTIVATION == "none":
        store(out_ptr, pair if SCATTERED else row, real, total, first_column, COLUMNS)
    else:
        # Columns are alternating (gate, up) pairs.
        gate, up = tl.split(tl.reshape(total, [TILE_ROWS, TILE_COLUMNS // 2, 2]))
        made = activated(gate, ACTIVATION) * up
        target = pair if SCATTERED else row
        store(out_ptr, target, real, made, first_column // 2, COLUMNS // 2)


@triton.jit
def store(out_ptr, row, real, values, first_column, COLUMNS: tl.constexpr):
    column = first_column + tl.arange(0, values.shape[1])
    at = out_ptr + row.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    mask = real[:, None] & (column < COLUMNS)[None, :]
    tl.store(at, values.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """silu, or tanh gelu as x * sigmoid(2 y), since 1 + tanh(y) = 2 sigmoid(2 y)."""
    tl.static_assert(ACTIVATION == "silu" or ACTIVATION == "gelu_tanh")
    y = x
    if ACTIVATION == "gelu_tanh":
        y = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-y))
