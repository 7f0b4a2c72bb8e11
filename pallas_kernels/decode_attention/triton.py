"""Decode attention by a Triton kernel, split over each row's context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.decode_attention.context_parts import Split, part_list, zero_counters
from pallas_kernels.decode_attention.kernels import decode_parts
from pallas_kernels.decode_attention.teams import (
    SMALLEST_TILE,
    queries_of_a_tile,
    rows_of_a_team,
    teams_of,
)
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.layout import codes_of, has_scales, kv_heads_of, strides
from pallas_kernels.shapes import as_scalar, next_power_of_two
from pallas_kernels.tuning import tuned


@dataclass(frozen=True)
class DecodeLaunch:
    """Sizes of one call. A callable: warps and stages depend on the device, known at lowering."""

    programs: int
    group: int
    head_dim: int
    dtype: str
    constants: tuple[tuple[str, Any], ...]

    def __call__(self, capability: int) -> Launch:
        facts = {"capability": capability, "dtype": self.dtype, "head_dim": self.head_dim}
        best = tuned("decode_attention", group=self.group, **facts)
        constants = {**dict(self.constants), "TOKENS": best["tokens"]}
        return Launch((self.programs,), constants, best["warps"], best["stages"])


def decode_attention_triton(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    lengths: Array,
    *,
    head_dim: int,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
    sinks: Array | None,
    dtype: np.dtype,
    reads_together: bool = False,
    counters: Array | None = None,
) -> tuple[Array, Array, Array]:
    """See `decode_attention`; returns the log-sum-exp and counters too. Queries beyond the rows of
    `tables` are allowed; their outputs are arbitrary."""
    rows, pages = tables.shape
    tokens, heads, _ = q.shape
    kv_heads = kv_heads_of(cache, head_dim)
    group = heads // kv_heads
    in_view = pages * cache.shape[3]
    queries, team = queries_of_a_tile(group), min(rows_of_a_team(group), rows)
    # Under a sliding window rows read few tokens, and not their common prefix.
    has_teams = reads_together and window is None and team > 1
    split = Split(rows, kv_heads, in_view if window is None else min(in_view, window), has_teams)
    teams = None
    if has_teams:
        counts = jnp.maximum(lengths - starts, 0)
        teams = teams_of(tables, starts, counts, block_size=cache.shape[3], most=team)
    parts = split.parts if split.parts > rows else 1  # single parts need no partial results
    constants = {
        **attention_constants(cache, head_dim, group, scale, soft_cap),
        "ROWS": rows,
        "PAGES": pages,
        "QUERIES": queries,
        "PARTS": split.parts,
        "SLOTS": split.slots,
        "SPLIT": split.parts > rows,
        "HAS_SINKS": sinks is not None,
    }
    if counters is None:
        counters = zero_counters(rows, heads)
    assert counters.size >= rows * kv_heads, "of another step"
    # Without sinks the kernel does not read this array, but needs one.
    sink = starts if sinks is None else sinks
    out, lse, _, _, counters = call_kernel(
        decode_parts,
        q, cache, as_scalar(layer), tables, part_list(split, starts, lengths, window, teams), sink,
        counters,
        out=[
            jax.ShapeDtypeStruct((tokens, heads, head_dim), dtype),
            jax.ShapeDtypeStruct((tokens, heads), jnp.float32),
            # Parts stay in float32 until they are merged.
            jax.ShapeDtypeStruct((parts, heads, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((parts, heads), jnp.float32),
        ],
        in_place=(6,),
        launch=DecodeLaunch(
            kv_heads * split.slots, group, head_dim, tuned_dtype(cache),
            tuple(constants.items()),
        ),
    )  # fmt: skip
    return out, lse, counters


def attention_constants(
    cache: Array, head_dim: int, group: int, scale: float | None, soft_cap: float | None
) -> dict[str, Any]:
    """Constants common to all attention kernels over the paged cache."""
    return {
        **strides(cache, head_dim).constants(),
        "BLOCK_SIZE": cache.shape[3],
        "KV_HEADS": kv_heads_of(cache, head_dim),
        "GROUP": group,
        "HEAD_DIM": head_dim,
        # Codes are multiplied half a head at a time.
        "PADDED_DIM": next_power_of_two(
            max(head_dim, SMALLEST_TILE * (1 + has_scales(cache.dtype)))
        ),
        "SCALE": head_dim**-0.5 if scale is None else float(scale),
        "SOFT_CAP": float(soft_cap or 0.0),
        # Full float32 matmuls: the default, tf32, keeps 11 bits of each operand.
        "PRECISION": "ieee" if cache.dtype == jnp.float32 else "tf32",
        "CODES": codes_of(cache.dtype),
    }


def tuned_dtype(cache: Array) -> str:
    """The cache's key in the tuning table."""
    return "codes" if has_scales(cache.dtype) else cache.dtype.name
