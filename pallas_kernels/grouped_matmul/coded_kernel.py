"""Triton kernel of grouped matmuls with quantized weights."""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.grouped_matmul.kernels import ENTRY, finish, place_of
from pallas_kernels.quantized_matmul.tiles import coded_sum


@triton.jit
def multiply_coded_tiles(
    x_ptr,  # [ROWS / CHOICES, DEPTH] if GATHERED, else [ROWS, DEPTH] in order
    weight_ptr,  # [GROUPS, COLUMNS, bytes]
    scale_of_inputs_ptr,  # [GROUPS, DEPTH / SHARED, COLUMNS]
    zero_ptr,  # as the scales; read if ZEROS
    order_ptr,  # i32[ROWS]
    map_ptr,  # i32[TILES, ENTRY]
    scale_ptr,  # f32[ROWS], read if SCATTERED
    out_ptr,  # [ROWS, COLUMNS], half of the columns with an ACTIVATION
    GROUPS: tl.constexpr,
    CHOICES: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARED: tl.constexpr,  # inputs with one scale
    PART: tl.constexpr,
    BYTES: tl.constexpr,  # of a column
    KIND: tl.constexpr,
    ZEROS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    BAND: tl.constexpr,
    GATHERED: tl.constexpr,
    SCATTERED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """`multiply_tiles` with dequantization in registers."""
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
        column = first_column + tl.arange(0, TILE_COLUMNS)
        wide = group.to(tl.int64)
        first_scale = wide * ((DEPTH + SHARED - 1) // SHARED * COLUMNS)
        made = coded_sum(
            x_ptr, source.to(tl.int64) * DEPTH, real, weight_ptr + wide * (COLUMNS * BYTES),
            scale_of_inputs_ptr + first_scale, zero_ptr + first_scale, column, column < COLUMNS,
            0, BYTES // PART, DEPTH, COLUMNS, SHARED, PART, KIND, ZEROS,
        )  # fmt: skip
        total = tl.trans(made)
    finish(
        out_ptr, scale_ptr, total, pair, row, real, first_column, COLUMNS, TILE_ROWS, TILE_COLUMNS,
        SCATTERED, ACTIVATION,
    )  # fmt: skip
