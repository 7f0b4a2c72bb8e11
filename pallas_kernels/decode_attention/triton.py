"""Decode attention by Triton kernels: the context in splits, and a merge where there are several.

The number of splits follows from shapes alone, their length from the row's own length. So a row's
arithmetic does not depend on other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.decode_attention.kernels import decode_part, merge_parts
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.layout import strides
from pallas_kernels.shapes import as_scalar, next_power_of_two
from pallas_kernels.tuning import table, tuned

# The smallest tile that tensor cores multiply.
SMALLEST_TILE = 16


@dataclass(frozen=True)
class DecodeLaunch:
    """Sizes of one call; the rest depends on the device, known when the program is lowered."""

    rows: int
    kv_heads: int
    group: int
    head_dim: int
    dtype: str
    splits: int
    constants: tuple[tuple[str, Any], ...]

    def __call__(self, capability: int) -> Launch:
        facts = {"capability": capability, "dtype": self.dtype, "head_dim": self.head_dim}
        best = tuned("decode_attention", group=self.group, **facts)
        constants = {**dict(self.constants), "TOKENS": best["tokens"]}
        grid = (self.rows * self.kv_heads * self.splits,)
        return Launch(grid, constants, best["warps"], best["stages"])


@dataclass(frozen=True)
class MergeLaunch:
    """The launch of the merge, which must split a row's context exactly as the parts did."""

    parts: DecodeLaunch
    constants: tuple[tuple[str, Any], ...]

    def __call__(self, capability: int) -> Launch:
        tokens = dict(self.parts(capability).constants)["TOKENS"]
        grid = (self.parts.rows * self.parts.kv_heads * self.parts.group,)
        return Launch(grid, {**dict(self.constants), "TOKENS": tokens})


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
) -> tuple[Array, Array]:
    """See `decode_attention`; returns the log-sum-exp as well."""
    rows, heads, _ = q.shape
    kv_heads, pages = cache.shape[-1] // head_dim, tables.shape[1]
    in_view = pages * cache.shape[3] if window is None else min(window, pages * cache.shape[3])
    splits = num_splits(rows * kv_heads, in_view)
    shared = {
        "HEAD_DIM": head_dim,
        "PADDED_DIM": next_power_of_two(max(head_dim, SMALLEST_TILE)),
        "SPLITS": splits,
        "SHORTEST_SPLIT": table("decode_attention")["splits"]["shortest"],
        "WINDOW": window or 0,
    }
    group = heads // kv_heads
    constants = {
        **shared,
        **attention_constants(cache, head_dim, group, scale, soft_cap),
        "PAGES": pages,
        "PADDED_GROUP": next_power_of_two(max(group, SMALLEST_TILE)),
        "HAS_SINKS": sinks is not None and splits == 1,
    }
    launch = DecodeLaunch(
        rows, kv_heads, group, head_dim, cache.dtype.name, splits, tuple(constants.items())
    )
    # Without sinks the kernel does not read this array, but needs one.
    sink = starts if sinks is None else sinks
    parts, lse = call_kernel(
        decode_part, q, cache, as_scalar(layer), tables, starts, lengths, sink,
        out=[
            # Parts stay in float32 until they are merged.
            jax.ShapeDtypeStruct(
                (rows, heads, splits, head_dim), dtype if splits == 1 else jnp.float32
            ),
            jax.ShapeDtypeStruct((rows, heads, splits), jnp.float32),
        ],
        launch=launch,
    )  # fmt: skip
    if splits == 1:
        return parts.reshape(q.shape), lse.reshape(rows, heads)
    merge = {**shared, "HEADS": heads, "HAS_SINKS": sinks is not None}
    out, lse = call_kernel(
        merge_parts, parts, lse, starts, lengths, sink,
        out=[
            jax.ShapeDtypeStruct(q.shape, dtype),
            jax.ShapeDtypeStruct((rows, heads), jnp.float32),
        ],
        launch=MergeLaunch(launch, tuple(merge.items())),
    )  # fmt: skip
    return out, lse


def attention_constants(
    cache: Array, head_dim: int, group: int, scale: float | None, soft_cap: float | None
) -> dict[str, Any]:
    """Constants of every attention kernel over the paged cache."""
    return {
        **strides(cache.shape, head_dim).constants(),
        "BLOCK_SIZE": cache.shape[3],
        "KV_HEADS": cache.shape[-1] // head_dim,
        "GROUP": group,
        "SCALE": head_dim**-0.5 if scale is None else float(scale),
        "SOFT_CAP": float(soft_cap or 0.0),
        # Full float32 matmuls: the default, tf32, keeps 11 bits of each operand.
        "PRECISION": "ieee" if cache.dtype == jnp.float32 else "tf32",
    }


def num_splits(programs: int, tokens: int) -> int:
    """Splits of each row's context: enough to fill a device, and none of them very long."""
    sizes = table("decode_attention")["splits"]
    wanted = max(-(-sizes["programs"] // programs), -(-tokens // sizes["longest"]))
    most = min(-(-tokens // sizes["shortest"]), sizes["most"])
    return next_power_of_two(max(min(wanted, most), 1))
