"""Latent attention by a Triton kernel: decodes split over their context, other tokens unsplit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.decode_attention.context_parts import Split, parts_between, zero_counters
from pallas_kernels.latent_attention.kernels import latent_parts
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.shapes import as_scalar, next_power_of_two
from pallas_kernels.tuning import first_match, table, tuned

# The smallest tile that tensor cores multiply.
SMALLEST_TILE = 16


@dataclass(frozen=True)
class LatentLaunch:
    """Sizes of one call. A callable: warps and stages depend on the device, known at lowering."""

    programs: int
    dtype: str
    tile: int
    constants: tuple[tuple[str, Any], ...]

    def __call__(self, capability: int) -> Launch:
        best = tuned("latent_attention", capability=capability, dtype=self.dtype, tile=self.tile)
        constants = {**dict(self.constants), "TOKENS": best["tokens"]}
        return Launch((self.programs,), constants, best["warps"], best["stages"])


def latent_attention_triton(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    begins: Array,
    ends: Array,
    *,
    rank: int,
    scale: float,
    dtype: np.dtype,
    counters: Array | None = None,
) -> tuple[Array, Array, Array]:
    """See `latent_attention`; returns the counters too."""
    (tokens, heads, width), (rows, pages) = q.shape, tables.shape
    each = tokens // rows
    most = first_match(table("latent_attention")["tiles"], {"dtype": cache.dtype.name})
    tile = min(next_power_of_two(max(heads, SMALLEST_TILE)), most["use"]["heads"])
    tiles = -(-heads // tile)
    starts = jnp.repeat(starts, each)
    low = jnp.maximum(begins - starts, 0)
    count = jnp.maximum(ends - starts - low, 0)
    split = Split(tokens, tiles, pages * cache.shape[2])
    is_split = each == 1 and split.parts > tokens
    parts, slots = (split.parts, split.slots) if is_split else (tokens, tokens)
    fields = parts_between(split, low, count) if is_split else whole_parts(low, count)
    _, blocks, block_size, _ = cache.shape
    constants = {
        "ROWS": tokens,
        "LAYER_STRIDE": blocks * block_size * width,
        "BLOCK_STRIDE": block_size * width,
        "TOKEN_STRIDE": width,
        "BLOCK_SIZE": block_size,
        "PAGES": pages,
        "EACH": each,
        "HEADS": heads,
        "TILE": tile,
        "TILES": tiles,
        "RANK": rank,
        "PADDED_RANK": next_power_of_two(max(rank, SMALLEST_TILE)),
        "ROPE": width - rank,
        "PADDED_ROPE": next_power_of_two(max(width - rank, SMALLEST_TILE)),
        "PARTS": parts,
        "SLOTS": slots,
        "SPLIT": is_split,
        "SCALE": float(scale),
        # Full float32 matmuls: the default, tf32, keeps 11 bits of each operand.
        "PRECISION": "ieee" if cache.dtype == jnp.float32 else "tf32",
    }
    if counters is None:
        counters = zero_counters(rows, heads)
    assert counters.size >= tokens * tiles or not is_split, "of another step"
    kept = parts if is_split else 1  # single parts need no partial results
    out, lse, _, _, counters = call_kernel(
        latent_parts,
        q, cache, as_scalar(layer), tables, fields,
        counters,
        out=[
            jax.ShapeDtypeStruct((tokens, heads, rank), dtype),
            jax.ShapeDtypeStruct((tokens, heads), jnp.float32),
            # Parts stay in float32 until they are merged.
            jax.ShapeDtypeStruct((kept, heads, rank), jnp.float32),
            jax.ShapeDtypeStruct((kept, heads), jnp.float32),
        ],
        in_place=(5,),
        launch=LatentLaunch(tiles * slots, cache.dtype.name, tile, tuple(constants.items())),
    )  # fmt: skip
    return out, lse, counters


def whole_parts(low: Array, count: Array) -> Array:
    """Part list in `parts_between`'s layout with one part per token."""
    row = jnp.arange(low.shape[0], dtype=jnp.int32)
    none, one = jnp.zeros_like(row), jnp.ones_like(row)
    number = jnp.full(1, low.shape[0], jnp.int32)
    return jnp.concatenate([row, low, low + count, none, one, number, one])
