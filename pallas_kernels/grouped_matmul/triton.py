"""Grouped matmuls by Triton kernels: one program per row tile of a group and column tile.

Tile height follows the mean rows per group: 16 where few tokens read many weights, 128 for long
prompts. The grid covers the worst division of rows among groups; unused programs exit at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.grouped_matmul.coded_kernel import multiply_coded_tiles
from pallas_kernels.grouped_matmul.groups import RowGroups, addend_dtype
from pallas_kernels.grouped_matmul.kernels import ENTRY, count_parts, multiply_tiles, place_rows
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.quantized_matmul.coded import CodedWeight
from pallas_kernels.quantized_matmul.triton import as_bytes
from pallas_kernels.shapes import next_power_of_two
from pallas_kernels.tuning import table, tuned

OPERATION = "grouped_matmul"
PARTS_AT_ONCE = 8


@dataclass(frozen=True)
class TilesLaunch:
    """Sizes of one matmul. A callable: the rest depends on the device, known at lowering."""

    tiles: int
    tile_rows: int
    columns: int
    kind: str  # dtype of plain weights, or of codes
    zeros: bool  # whether codes have zeros of their own
    constants: tuple[tuple[str, Any], ...]

    def __call__(self, capability: int) -> Launch:
        facts = {
            "capability": capability,
            "kind": self.kind,
            "zeros": self.zeros,
            "rows": self.tile_rows,
        }
        best = tuned(OPERATION, **facts)
        columns = fitting(self.columns, best["columns"])
        constants = {
            **dict(self.constants),
            "TILE_ROWS": self.tile_rows,
            "TILE_COLUMNS": columns,
            "BAND": best["band"],
        }
        if "depth" in best:
            constants["TILE_DEPTH"] = best["depth"]
        grid = (self.tiles * -(-self.columns // columns),)
        return Launch(grid, constants, best["warps"], best["stages"])


def sort_by_group_triton(groups: Array, num_groups: int) -> RowGroups:
    """See `sort_by_group`."""
    (rows,) = groups.shape
    sizes = table(OPERATION)
    part, placed = sizes["part"], sizes["placed"]
    parts, programs = -(-rows // part), -(-rows // placed)
    tile_rows = tile_rows_for(rows, num_groups)
    tiles = most_tiles(rows, num_groups, tile_rows)
    shared = {
        "ROWS": rows,
        "GROUPS": num_groups,
        "BINS": next_power_of_two(num_groups + 1),
        "PART": part if parts > 1 else max(next_power_of_two(rows), placed),
    }
    counts = groups
    if parts > 1:
        (counts,) = call_kernel(
            count_parts, groups,
            out=[jax.ShapeDtypeStruct((parts, shared["BINS"]), jnp.int32)],
            launch=Launch((parts,), shared),
        )  # fmt: skip
    constants = {
        **shared,
        "PARTS": parts,
        "PARTS_AT_ONCE": PARTS_AT_ONCE,
        "PLACED": placed,
        "TILE_ROWS": tile_rows,
        "TILES": tiles,
        "MAPPED": next_power_of_two(-(-tiles // programs)),
    }
    order, found, entries = call_kernel(
        place_rows, groups, counts,
        out=[
            jax.ShapeDtypeStruct((rows,), jnp.int32),
            jax.ShapeDtypeStruct((num_groups,), jnp.int32),
            jax.ShapeDtypeStruct((tiles, ENTRY.value), jnp.int32),
        ],
        launch=Launch((programs,), constants),
    )  # fmt: skip
    return RowGroups(order, found, entries)


def multiply_tokens_triton(
    x: Array, weight: Array | CodedWeight, groups: RowGroups, activation: str | None
) -> Array:
    """See `multiply_tokens`."""
    rows = groups.order.shape[0]
    width = weight.shape[2] // (1 if activation is None else 2)
    out = jax.ShapeDtypeStruct((rows, width), weight.dtype)
    flags = {
        "GATHERED": True, "SCATTERED": False, "CHOICES": rows // x.shape[0],
        "ACTIVATION": activation or "none",
    }  # fmt: skip
    # Without scales the kernel does not read this array, but needs one.
    return multiplied(x, weight, groups, groups.order, out, flags)


def combine_rows_triton(
    x: Array, weight: Array | CodedWeight, groups: RowGroups, scales: Array
) -> Array:
    """See `combine_rows`."""
    rows, width = x.shape[0], weight.shape[2]
    out = jax.ShapeDtypeStruct((rows, width), addend_dtype(weight.dtype))
    flags = {"GATHERED": False, "SCATTERED": True, "CHOICES": 1, "ACTIVATION": "none"}
    made = multiplied(x, weight, groups, scales.reshape(-1), out, flags)
    return jnp.sum(made.reshape(*scales.shape, width).astype(jnp.float32), axis=1)


def multiplied(
    x: Array,
    weight: Array | CodedWeight,
    groups: RowGroups,
    scales: Array,
    out: jax.ShapeDtypeStruct,
    flags: dict[str, Any],
) -> Array:
    """Launch the matmul kernel, plain or dequantizing."""
    num_groups, depth, columns = weight.shape
    assert groups.tiles is not None, "these groups were not sorted by the triton implementation"
    constants = {**flags, "GROUPS": num_groups, "DEPTH": depth, "COLUMNS": columns}
    if isinstance(weight, CodedWeight):
        kernel, kind, arrays = multiply_coded_tiles, weight.kind, coded_arrays(weight)
        constants |= {
            "SHARED": weight.group,
            "PART": weight.part,
            "BYTES": weight.codes.shape[-1],
            "KIND": weight.kind,
            "ZEROS": weight.zeros is not None,
        }
    else:
        kernel, kind, arrays = multiply_tiles, weight.dtype.name, (weight,)
        # Full float32 matmuls: the default, tf32, keeps 11 bits of each operand.
        constants["PRECISION"] = "ieee" if weight.dtype == jnp.float32 else "tf32"
    tile_rows = tile_rows_for(groups.order.shape[0], num_groups)
    (made,) = call_kernel(
        kernel, x, *arrays, groups.order, groups.tiles, scales,
        out=[out],
        launch=TilesLaunch(
            groups.tiles.shape[0], tile_rows, columns, kind,
            bool(constants.get("ZEROS")), tuple(constants.items()),
        ),
    )  # fmt: skip
    return made


def coded_arrays(weight: CodedWeight) -> tuple[Array, Array, Array]:
    """Codes, scales and zeros; scales stand in for missing zeros, which the kernel does not
    read."""
    zeros = weight.scales if weight.zeros is None else weight.zeros
    return as_bytes(weight), weight.scales, zeros


def tile_rows_for(rows: int, num_groups: int) -> int:
    """Tile height. Does not depend on the device: tile map and matmuls must agree."""
    sizes = table(OPERATION)
    heights = (height for least, height in sizes["tile_rows"] if rows >= least * num_groups)
    return next(heights, sizes["smallest_tile_rows"])


def most_tiles(rows: int, num_groups: int, tile_rows: int) -> int:
    """Maximum number of row tiles for any division of rows among groups and padding."""
    in_use = min(num_groups + 1, rows)
    return (rows + in_use * (tile_rows - 1)) // tile_rows


def fitting(columns: int, tile: int) -> int:
    """Halve the column tile, down to 64, until it divides the columns."""
    smallest = min(tile, 64)
    while columns % tile and tile > smallest:
        tile //= 2
    return tile
