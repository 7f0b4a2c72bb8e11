"""Prefill attention by a Triton kernel: one program per tile part and KV head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.decode_attention.triton import SMALLEST_TILE, attention_constants, tuned_dtype
from pallas_kernels.launch import Launch, call_kernel
from pallas_kernels.layout import kv_heads_of
from pallas_kernels.prefill_attention.copies import copies
from pallas_kernels.prefill_attention.kernels import prefill_tiles
from pallas_kernels.shapes import as_scalar, next_power_of_two
from pallas_kernels.tuning import tuned


@dataclass(frozen=True)
class PrefillLaunch:
    """Sizes of one call. A callable: warps and stages depend on the device, known at lowering."""

    runs: int
    tokens: int  # of a run
    kv_heads: int
    group: int
    head_dim: int
    dtype: str
    constants: tuple[tuple[str, Any], ...]

    def __call__(self, capability: int) -> Launch:
        facts = {"capability": capability, "dtype": self.dtype, "head_dim": self.head_dim}
        best = tuned("prefill_attention", group=self.group, tile=self.tokens, **facts)
        padded_group = next_power_of_two(self.group)
        tokens = part_tokens(self.tokens, padded_group, best["queries"])
        parts = -(-self.tokens // tokens)
        constants = {
            **dict(self.constants),
            "PADDED_GROUP": padded_group,
            "PART_TOKENS": tokens,
            "PARTS": parts,
            "TOKENS": best["tokens"],
        }
        grid = (self.kv_heads * self.runs * parts,)
        return Launch(grid, constants, best["warps"], best["stages"])


def part_tokens(tile: int, padded_group: int, queries: int) -> int:
    """Tokens per program: tokens x padded_group is at most `queries` and at least SMALLEST_TILE."""
    wanted = min(next_power_of_two(tile), max(queries // padded_group, 1))
    return max(wanted, SMALLEST_TILE // padded_group)


def prefill_attention_triton(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    positions: Array,
    *,
    head_dim: int,
    window: int | None,
    runs: Array | None = None,
    into: tuple[Array, Array] | None = None,
    **options: Any,
) -> tuple[Array, Array]:
    """See `prefill_attention`; also returns the log-sum-exp. With more queries than positions, the
    tiles' queries are the last. `into` are output arrays whose last entries are written in place.
    """
    options |= {"head_dim": head_dim, "window": window, "runs": runs}
    # Under a sliding window most copied blocks would not be read.
    found = None
    if window is None:
        found = copies(cache, layer, tables, starts, positions, runs, head_dim)
    if found is None:
        return attend_tiles(q, cache, layer, tables, starts, positions, into=into, **options)
    options["partial"] = True
    others = attend_tiles(q, cache, layer, tables, starts, found.outside, into=into, **options)
    return attend_tiles(
        q, found.cache, 0, found.tables, starts, found.inside, into=others, **options
    )


def attend_tiles(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    positions: Array,
    *,
    head_dim: int,
    window: int | None,
    scale: float | None,
    soft_cap: float | None,
    sinks: Array | None,
    dtype: np.dtype,
    runs: Array | None = None,
    joined: int = 1,
    ends: Array | None = None,
    into: tuple[Array, Array] | None = None,
    partial: bool = False,
) -> tuple[Array, Array]:
    """`prefill_attention_triton` without copies. `partial`: outputs of tiles whose positions are
    ELSEWHERE are not written."""
    tiles, pages = tables.shape
    tokens, heads, _ = q.shape
    kv_heads = kv_heads_of(cache, head_dim)
    tile, group = positions.size // tiles, heads // kv_heads
    constants = {
        **attention_constants(cache, head_dim, group, scale, soft_cap),
        "PAGES": pages,
        "FIRST": tokens - positions.size,
        "RUNS": tiles if runs is None else runs.size - 1,
        "TILE": tile,
        "HAS_RUNS": runs is not None,
        "WINDOW": window or 0,
        "HAS_SINKS": sinks is not None,
        "HAS_ENDS": ends is not None,
        "PARTIAL": partial,
    }
    # Without sinks the kernel does not read this array, but needs one.
    sink = starts if sinks is None else sinks
    results = (
        jax.ShapeDtypeStruct(q.shape, dtype),
        jax.ShapeDtypeStruct((tokens, heads), jnp.float32),
    )
    # Nor does it read unused runs and ends.
    firsts = starts if runs is None else runs
    keys = starts if ends is None else ends
    given = (q, cache, as_scalar(layer), tables, starts, positions, keys, firsts, sink)
    out, lse = call_kernel(
        prefill_tiles, *given, *(into or ()),
        out=() if into else results,
        in_place=(len(given), len(given) + 1) if into else (),
        launch=PrefillLaunch(
            constants["RUNS"], tile if runs is None else tile * joined, kv_heads, group, head_dim,
            tuned_dtype(cache), tuple(constants.items()),
        ),
    )  # fmt: skip
    return out, lse
