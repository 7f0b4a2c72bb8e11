"""Prefill attention in plain XLA: a tile of queries at a time, keys in runs, running softmax.

Both loops run as far as the tiles in use need, so padding costs nothing here.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pallas_kernels.decode_attention.xla import (
    FAR_BELOW,
    TOKENS_AT_ONCE,
    accumulate,
    broadcast,
    capped,
    normalized,
    pad_pages,
    product,
)
from pallas_kernels.layout import held_dtype, read_blocks


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
) -> tuple[Array, Array]:
    """See `prefill_attention`; returns the log-sum-exp as well."""
    tiles = tables.shape[0]
    tokens, heads, _ = q.shape
    tile = tokens // tiles
    kv_heads = cache.shape[-1] // head_dim
    pages = max(1, TOKENS_AT_ONCE // cache.shape[3])
    tables = pad_pages(tables, pages)
    grouped = q.reshape(tiles, tile, kv_heads, heads // kv_heads, head_dim)
    scale = head_dim**-0.5 if scale is None else scale
    # [tiles, KV, tile, G, D]
    grouped = grouped.astype(held_dtype(cache)).transpose(0, 2, 1, 3, 4)
    tile_positions = positions.reshape(tiles, tile)

    def one_tile(index: Array, out: tuple[Array, Array]) -> tuple[Array, Array]:
        queries = grouped[index].reshape(kv_heads, -1, head_dim)  # [KV, tile * G, D]
        highest, total, mixed = _attend_tile(
            queries, cache, layer, tables[index], starts[index], tile_positions[index],
            pages, window, scale, soft_cap,
        )  # fmt: skip
        shape = grouped.shape[1:]
        spread = None if sinks is None else spread_sinks(sinks, kv_heads, tile)
        mixed, lse = normalized(highest, total, mixed, spread)
        put = lambda into, part: lax.dynamic_update_index_in_dim(into, part, index, 0)  # noqa: E731
        return put(out[0], mixed.reshape(shape)), put(out[1], lse.reshape(shape[:-1]))

    used = jnp.sum(jnp.any(tile_positions >= 0, axis=1).astype(jnp.int32))
    nothing = jnp.zeros(grouped.shape, jnp.float32), jnp.zeros(grouped.shape[:-1], jnp.float32)
    out, lse = lax.fori_loop(0, used, one_tile, nothing)
    lse = lse.transpose(0, 2, 1, 3).reshape(tokens, heads)
    real = jnp.broadcast_to(positions[:, None] >= 0, lse.shape)
    lse = jnp.where(real, lse, -jnp.inf)
    out = out.transpose(0, 2, 1, 3, 4).reshape(tokens, heads, head_dim)
    return out.astype(dtype), lse


def spread_sinks(sinks: Array, kv_heads: int, tile: int) -> Array:
    """Sinks [heads] for the queries of a tile, [KV, tile * G]."""
    grouped = sinks.reshape(kv_heads, 1, -1)
    wide = jnp.broadcast_to(grouped, (kv_heads, tile, grouped.shape[-1]))
    return wide.reshape(kv_heads, -1)


def _attend_tile(
    q: Array,
    cache: Array,
    layer: int | Array,
    table: Array,
    start: Array,
    positions: Array,
    pages: int,
    window: int | None,
    scale: float,
    soft_cap: float | None,
) -> tuple[Array, Array, Array]:
    """Running softmax of q [KV, tile * G, D] over one row's blocks."""
    kv_heads, queries, dim = q.shape
    span = pages * cache.shape[3]
    end = jnp.max(positions) + 1
    own_position = jnp.repeat(positions, queries // positions.shape[0])[:, None]  # [tile * G, 1]

    def some_pages(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        blocks = lax.dynamic_slice_in_dim(table, index * pages, pages)
        keys, values = read_blocks(cache, layer, blocks)  # [S, KV * D]
        position = start + index * span + jnp.arange(span, dtype=jnp.int32)[None, :]
        seen = position <= own_position
        if window is not None:
            seen &= position > own_position - window
        values = jnp.where(broadcast(position[0] < end, values), values, 0)
        keys, values = (
            x.reshape(span, kv_heads, dim).transpose(1, 0, 2) for x in (keys, values)
        )  # [KV, S, D]
        scores = capped(scale * product("kqd,ksd->kqs", q, keys), soft_cap)
        return accumulate(carry, scores, values, seen[None], "kqs,ksd->kqd")

    carry = (
        jnp.full((kv_heads, queries), FAR_BELOW, jnp.float32),
        jnp.zeros((kv_heads, queries), jnp.float32),
        jnp.zeros((kv_heads, queries, dim), jnp.float32),
    )
    runs = -(-(end - start) // span)
    return lax.fori_loop(0, runs, some_pages, carry)
