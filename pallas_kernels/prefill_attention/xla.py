"""Prefill attention in plain XLA: a tile of queries at a time, keys in runs, running softmax.

Both loops run as far as the tiles in use need, so padding costs nothing here.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.decode_attention.xla import (
    FAR_BELOW,
    TOKENS_AT_ONCE,
    accumulate,
    broadcast,
    capped,
    pad_pages,
)
from pallas_kernels.layout import read_blocks


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
) -> Array:
    """See `prefill_attention`."""
    tiles = tables.shape[0]
    tokens, heads, _ = q.shape
    tile = tokens // tiles
    kv_heads = cache.shape[-1] // head_dim
    pages = max(1, TOKENS_AT_ONCE // cache.shape[3])
    tables = pad_pages(tables, pages)
    grouped = q.reshape(tiles, tile, kv_heads, heads // kv_heads, head_dim)
    grouped = grouped * (head_dim**-0.5 if scale is None else scale)
    grouped = grouped.transpose(0, 2, 1, 3, 4)  # [tiles, KV, tile, G, D]
    tile_positions = positions.reshape(tiles, tile)

    def one_tile(index: Array, out: Array) -> Array:
        queries = grouped[index].reshape(kv_heads, -1, head_dim)  # [KV, tile * G, D]
        mixed = _attend_tile(
            queries, cache, layer, tables[index], starts[index], tile_positions[index],
            pages, window, soft_cap,
        )  # fmt: skip
        return lax.dynamic_update_index_in_dim(out, mixed.reshape(out.shape[1:]), index, 0)

    used = jnp.sum(jnp.any(tile_positions >= 0, axis=1).astype(jnp.int32))
    out = lax.fori_loop(0, used, one_tile, jnp.zeros(grouped.shape, jnp.float32))
    return out.transpose(0, 2, 1, 3, 4).reshape(tokens, heads, head_dim)


def _attend_tile(
    q: Array,
    cache: Array,
    layer: int | Array,
    table: Array,
    start: Array,
    positions: Array,
    pages: int,
    window: int | None,
    soft_cap: float | None,
) -> Array:
    """q [KV, tile * G, D] against one row's blocks."""
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
            x.astype(jnp.float32).reshape(span, kv_heads, dim).transpose(1, 0, 2)
            for x in (keys, values)
        )  # [KV, S, D]
        scores = capped(jnp.einsum("kqd,ksd->kqs", q, keys), soft_cap)
        return accumulate(carry, scores, values, seen[None], "kqs,ksd->kqd")

    carry = (
        jnp.full((kv_heads, queries), FAR_BELOW, jnp.float32),
        jnp.zeros((kv_heads, queries), jnp.float32),
        jnp.zeros((kv_heads, queries, dim), jnp.float32),
    )
    runs = -(-(end - start) // span)
    _, total, mixed = lax.fori_loop(0, runs, some_pages, carry)
    return mixed / jnp.broadcast_to(jnp.maximum(total, 1e-30)[..., None], mixed.shape)
