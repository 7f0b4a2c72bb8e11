"""Latent attention in plain XLA: a few rows at a time, online softmax over pages.

Loops run to the longest row of a group: sort rows by length.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pallas_kernels.layout import held_dtype, pad_pages, read_entries
from pallas_kernels.running_softmax import SoftmaxState, in_groups

ROWS_AT_ONCE = 8, 4, 2
TOKENS_AT_ONCE = 64
# XLA on the CPU turns a matmul with a single row into slow scalar loops.
FEWEST_QUERIES = 2


def latent_attention_xla(
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
) -> tuple[Array, Array]:
    """See `latent_attention`."""
    (tokens, heads, width), rows = q.shape, tables.shape[0]
    each = tokens // rows  # queries of a row
    pages = max(1, TOKENS_AT_ONCE // cache.shape[2])
    tables = pad_pages(tables, pages)
    queries = q.astype(held_dtype(cache)).reshape(rows, 1, each * heads, width)
    missing = max(FEWEST_QUERIES - each * heads, 0)
    queries = jnp.pad(queries, ((0, 0), (0, 0), (0, missing), (0, 0)))
    spans = [
        jnp.pad(jnp.repeat(one.reshape(rows, each), heads, axis=1), ((0, 0), (0, missing)))
        for one in (begins, ends)
    ]

    def some_rows(
        q: Array, tables: Array, starts: Array, begins: Array, ends: Array
    ) -> SoftmaxState:
        return _attend_rows(q, cache, layer, tables, starts, begins, ends, pages, rank, scale)

    attends = jnp.any((ends > begins).reshape(rows, each), axis=1)
    used = jnp.max(jnp.where(attends, jnp.arange(1, rows + 1), 0))
    out, lse = in_groups(
        ROWS_AT_ONCE, used, some_rows, None, queries, tables, starts, *spans, dim=rank
    )
    out, lse = (x[:, 0, : each * heads].reshape(tokens, heads, *x.shape[3:]) for x in (out, lse))
    real = jnp.broadcast_to((ends > begins)[:, None], lse.shape)
    return out.astype(dtype), jnp.where(real, lse, -jnp.inf)


def _attend_rows(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    begins: Array,
    ends: Array,
    pages: int,
    rank: int,
    scale: float,
) -> SoftmaxState:
    """Online softmax over chunks of pages for a few rows; q is [r, 1, queries, width]."""
    span = pages * cache.shape[2]
    until = jnp.max(ends, axis=1)  # [r]

    def some_pages(index: Array, running: SoftmaxState) -> SoftmaxState:
        blocks = lax.dynamic_slice_in_dim(tables, index * pages, pages, axis=1)
        position = starts[:, None] + index * span + jnp.arange(span, dtype=jnp.int32)[None, :]
        entries = read_entries(cache, layer, blocks, position < until[:, None])[:, None]
        position = position[:, None, None, :]
        seen = (position >= begins[:, None, :, None]) & (position < ends[:, None, :, None])
        return running.with_chunk(q, entries, entries[..., :rank], seen, scale, None)

    runs = -(-jnp.max(until - starts) // span)
    return lax.fori_loop(0, runs, some_pages, SoftmaxState.of_nothing(q, rank))
