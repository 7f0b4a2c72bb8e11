"""Prefill attention in plain XLA: a few query tiles at a time, online softmax over keys.

Both loops stop at the last used tile and key, so padding costs nothing.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pallas_kernels.layout import held_dtype, kv_heads_of, pad_pages, read_heads
from pallas_kernels.running_softmax import SoftmaxState, biased, in_groups, sloped

TOKENS_AT_ONCE = 128
# Consecutive tiles mostly belong to one prompt, so they need about the same number of keys.
TILES_AT_ONCE = 4, 2


def prefill_attention_xla(
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
    ends: Array | None = None,
    slopes: Array | None = None,
    biases: Array | None = None,
) -> tuple[Array, Array]:
    """See `prefill_attention`; also returns the log-sum-exp."""
    tiles = tables.shape[0]
    tokens, heads, _ = q.shape
    tile = tokens // tiles
    kv_heads = kv_heads_of(cache, head_dim)
    pages = max(1, TOKENS_AT_ONCE // cache.shape[3])
    tables = pad_pages(tables, pages)
    grouped = q.reshape(tiles, tile, kv_heads, heads // kv_heads, head_dim)
    scale = head_dim**-0.5 if scale is None else scale
    # [tiles, KV, tile, G, D]
    grouped = grouped.astype(held_dtype(cache)).transpose(0, 2, 1, 3, 4)
    shape = grouped.shape
    queries = grouped.reshape(tiles, kv_heads, -1, head_dim)
    tile_positions = positions.reshape(tiles, tile)
    spread, spread_slopes, spread_biases = (
        None if one is None else spread_heads(one, kv_heads, tile)
        for one in (sinks, slopes, biases)
    )

    def some_tiles(
        q: Array, tables: Array, starts: Array, positions: Array, ends: Array
    ) -> SoftmaxState:
        return _attend_tiles(
            q, cache, layer, tables, starts, positions, ends, pages, window, scale, soft_cap,
            spread_slopes, spread_biases,
        )  # fmt: skip

    last_keys = jnp.max(tile_positions, axis=1) + 1
    used = jnp.sum(jnp.any(tile_positions >= 0, axis=1).astype(jnp.int32))
    out, lse = in_groups(
        TILES_AT_ONCE, used, some_tiles, spread, queries, tables, starts, tile_positions,
        last_keys if ends is None else jnp.minimum(last_keys, ends),
    )  # fmt: skip
    lse = lse.reshape(shape[:-1]).transpose(0, 2, 1, 3).reshape(tokens, heads)
    real = jnp.broadcast_to(positions[:, None] >= 0, lse.shape)
    lse = jnp.where(real, lse, -jnp.inf)
    out = out.reshape(shape).transpose(0, 2, 1, 3, 4).reshape(tokens, heads, head_dim)
    return out.astype(dtype), lse


def spread_heads(numbers: Array, kv_heads: int, tile: int) -> Array:
    """Repeat per-head values [heads, ...] for each token of a tile: [KV, tile * G, ...]."""
    heads, *rest = numbers.shape
    grouped = numbers.reshape(kv_heads, 1, heads // kv_heads, *rest)
    wide = jnp.broadcast_to(grouped, (kv_heads, tile, *grouped.shape[2:]))
    return wide.reshape(kv_heads, -1, *rest)


def _attend_tiles(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    positions: Array,
    ends: Array,
    pages: int,
    window: int | None,
    scale: float,
    soft_cap: float | None,
    slopes: Array | None,
    biases: Array | None,
) -> SoftmaxState:
    """Online softmax of q [t, KV, tile * G, D] over the blocks of each tile's row. Slopes are [KV,
    tile * G], biases [KV, tile * G, distances]."""
    span = pages * cache.shape[3]
    group = q.shape[2] // positions.shape[1]
    own_position = jnp.repeat(positions, group, axis=1)[:, None, :, None]  # [t, 1, tile * G, 1]

    def some_pages(index: Array, running: SoftmaxState) -> SoftmaxState:
        blocks = lax.dynamic_slice_in_dim(tables, index * pages, pages, axis=1)
        position = starts[:, None] + index * span + jnp.arange(span, dtype=jnp.int32)[None, :]
        keys, values = read_heads(cache, layer, blocks, q.shape[-1], position < ends[:, None])
        exists = (position < ends[:, None])[:, None, None, :]
        position = position[:, None, None, :]
        seen = (position <= own_position) & exists
        if window is not None:
            seen &= position > own_position - window
        distance = position - own_position
        bias = sloped(slopes, distance) if biases is None else biased(biases, distance)
        return running.with_chunk(q, keys, values, seen, scale, soft_cap, bias)

    runs = -(-jnp.max(ends - starts) // span)
    return lax.fori_loop(0, runs, some_pages, SoftmaxState.of_nothing(q))
