"""Triton kernels of quantized matmuls: one program per output tile and split of the inputs."""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.quantized_matmul.tiles import coded_sum, float8_sum


@triton.jit
def multiply_coded(
    x_ptr,  # [ROWS, DEPTH]
    weight_ptr,  # [COLUMNS, bytes]
    scale_ptr,  # [DEPTH / GROUP, COLUMNS]
    zero_ptr,  # as scale_ptr; read if ZEROS
    out_ptr,  # [SPLIT, ROWS, COLUMNS]
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    PART: tl.constexpr,
    BLOCKS: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    BAND: tl.constexpr,
    KIND: tl.constexpr,
    ZEROS: tl.constexpr,
):
    """x @ weight, or the partial sums of SPLIT splits of the inputs."""
    row, column, split = own_tile(ROWS, COLUMNS, SPLIT, TILE_ROWS, TILE_COLUMNS, BAND)
    real, inside = row < ROWS, column < COLUMNS
    each: tl.constexpr = (BLOCKS + SPLIT - 1) // SPLIT
    first = split * each
    total = coded_sum(
        x_ptr, row.to(tl.int64) * DEPTH, real, weight_ptr, scale_ptr, zero_ptr, column, inside,
        first, tl.minimum(first + each, BLOCKS), DEPTH, COLUMNS, GROUP, PART, KIND, ZEROS,
    )  # fmt: skip
    store_transposed(out_ptr, split, row, column, total, ROWS, COLUMNS)


@triton.jit
def multiply_float8(
    x_ptr,  # [ROWS, DEPTH]
    x_scale_ptr,  # f32[ROWS, DEPTH / GROUP]
    weight_ptr,  # [COLUMNS, DEPTH]
    scale_ptr,  # f32[DEPTH / GROUP, COLUMNS]
    out_ptr,  # [SPLIT, ROWS, COLUMNS]
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    BAND: tl.constexpr,
):
    """x @ weight of FP8 operands scaled per group of inputs, or the partial sums of SPLIT
    splits."""
    row, column, split = own_tile(ROWS, COLUMNS, SPLIT, TILE_ROWS, TILE_COLUMNS, BAND)
    real, inside = row < ROWS, column < COLUMNS
    GROUPS: tl.constexpr = DEPTH // GROUP
    each: tl.constexpr = (GROUPS + SPLIT - 1) // SPLIT
    first = split * each
    wide = row.to(tl.int64)
    total = float8_sum(
        x_ptr, wide * DEPTH, x_scale_ptr, wide * GROUPS, real, weight_ptr, scale_ptr, column,
        inside, first, tl.minimum(first + each, GROUPS), DEPTH, COLUMNS, GROUP,
    )  # fmt: skip
    store_transposed(out_ptr, split, row, column, total, ROWS, COLUMNS)


@triton.jit
def own_tile(
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Return this program's rows, columns and split.

    Programs of BAND row tiles are adjacent per column tile, to hit the weight in L2.
    """
    ROW_TILES: tl.constexpr = (ROWS + TILE_ROWS - 1) // TILE_ROWS
    COLUMN_TILES: tl.constexpr = (COLUMNS + TILE_COLUMNS - 1) // TILE_COLUMNS
    split = tl.program_id(0) % SPLIT
    program = tl.program_id(0) // SPLIT
    band_first = program // (BAND * COLUMN_TILES) * BAND
    band_tiles = tl.minimum(ROW_TILES - band_first, BAND)
    in_band = program - band_first * COLUMN_TILES
    row = (band_first + in_band % band_tiles) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = in_band // band_tiles * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    return row, column, split


@triton.jit
def store_transposed(out_ptr, split, row, column, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store a tile [columns, rows] transposed."""
    place = (split * ROWS + row).to(tl.int64) * COLUMNS
    at = out_ptr + place[:, None] + column[None, :]
    mask = (row < ROWS)[:, None] & (column < COLUMNS)[None, :]
    tl.store(at, tl.trans(total).to(out_ptr.dtype.element_ty), mask=mask)
