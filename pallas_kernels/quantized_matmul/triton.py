"""Quantized matmuls by Triton kernels: one program per tile of rows and columns.

Where few rows give too few tiles to fill the device, the inputs are split among programs (split-K)
and XLA sums the partial results, fused with what follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.quantized_matmul.coded import FOUR_BITS, CodedWeight
from pallas_kernels.quantized_matmul.kernels import multiply_coded, multiply_float8
from pallas_kernels.shapes import filling
from pallas_kernels.tuning import table, tuned

OPERATION = "quantized_matmul"


@dataclass(frozen=True)
class QuantizedTilesLaunch:
    """Sizes of one matmul. A callable: the rest depends on the device, known at lowering."""

    rows: int
    columns: int
    tile_rows: int
    split: int
    part: int  # inputs per dot
    float8: bool  # whether activations are FP8 too
    constants: tuple[tuple[str, Any], ...]

    def __call__(self, capability: int) -> Launch:
        facts = {"capability": capability, "rows": self.tile_rows, "part": self.part}
        best = tuned(OPERATION, float8=self.float8, **facts)
        constants = {
            **dict(self.constants),
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "SPLIT": self.split,
            "TILE_ROWS": self.tile_rows,
            "TILE_COLUMNS": best["columns"],
            "BAND": best["band"],
        }
        tiles = -(-self.rows // self.tile_rows) * -(-self.columns // best["columns"])
        return Launch((tiles * self.split,), constants, best["warps"], best["stages"])


def multiply_coded_triton(x: Array, weight: CodedWeight, dtype: Any) -> Array:
    """See `multiply_coded`."""
    block = weight.part * (2 if weight.kind in FOUR_BITS else 1)
    zeros = weight.scales if weight.zeros is None else weight.zeros
    constants = {
        "DEPTH": weight.depth,
        "GROUP": weight.group,
        "PART": weight.part,
        "BLOCKS": weight.depth // block,
        "KIND": weight.kind,
        "ZEROS": weight.zeros is not None,
    }
    arrays = x, as_bytes(weight), weight.scales, zeros
    return run(multiply_coded, arrays, weight, weight.depth // block, constants, weight.part, dtype)


def multiply_float8_triton(x: Array, x_scales: Array, weight: CodedWeight, dtype: Any) -> Array:
    """See `multiply_float8`."""
    constants = {"DEPTH": weight.depth, "GROUP": weight.group}
    arrays = x, x_scales, weight.codes, weight.scales
    blocks = weight.depth // weight.group
    return run(multiply_float8, arrays, weight, blocks, constants, weight.group, dtype)


def run(
    kernel: Any,
    arrays: tuple[Array, ...],
    weight: CodedWeight,
    blocks: int,
    constants: dict[str, Any],
    part: int,
    dtype: Any,
) -> Array:
    """Launch a kernel and sum its splits."""
    rows, columns = arrays[0].shape[0], weight.shape[-1]
    tile_rows = tile_rows_for(rows)
    split = split_for(rows, columns, tile_rows, blocks)
    kept = jnp.float32 if split > 1 else dtype
    sizes = rows, columns, tile_rows, split, part, kernel is multiply_float8
    (made,) = call_kernel(
        kernel, *arrays,
        out=[jax.ShapeDtypeStruct((split, rows, columns), kept)],
        launch=QuantizedTilesLaunch(*sizes, tuple(constants.items())),
    )  # fmt: skip
    return made[0] if split == 1 else jnp.sum(made, axis=0).astype(dtype)


def as_bytes(weight: CodedWeight) -> Array:
    """Codes, with FP8 bit-cast to bytes: devices before Ada lack the type."""
    if weight.kind != "fp8":
        return weight.codes
    return jax.lax.bitcast_convert_type(weight.codes, jnp.uint8)


def tile_rows_for(rows: int) -> int:
    heights = table(OPERATION)["tile_rows"]
    return next((height for height in heights if rows <= height), heights[-1])


def split_for(rows: int, columns: int, tile_rows: int, blocks: int) -> int:
    """Number of programs among which a tile's inputs are split."""
    sizes = table(OPERATION)
    tiles = -(-rows // tile_rows) * -(-columns // sizes["split_columns"])
    split = 1
    while (
        2 * split * tiles <= filling(sizes["waves"])
        and blocks >= 2 * split * sizes["least_blocks"]
        and rows <= sizes["split_rows"]
    ):
        split *= 2
    return split
