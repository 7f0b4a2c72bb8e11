"""Decode attention in plain XLA, shaped for CPUs.

Works on a few rows at a time, so that gathered keys stay in cache, with one matmul per KV head in
the KV cache's dtype. Loops run to the longest row of a group: sort rows by length.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pallas_kernels.layout import held_dtype, kv_heads_of, pad_pages, read_heads
from pallas_kernels.running_softmax import SoftmaxState, biased, in_groups, sloped

ROWS_AT_ONCE = 8, 4
TOKENS_AT_ONCE = 64
# XLA on the CPU turns a matmul with a single row into slow scalar loops.
FEWEST_QUERIES = 2


def decode_attention_xla(
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
    slopes: Array | None = None,
    biases: Array | None = None,
) -> tuple[Array, Array]:
    """See `decode_attention`; also returns the log-sum-exp."""
    rows, heads, _ = q.shape
    kv_heads = kv_heads_of(cache, head_dim)
    pages = max(1, TOKENS_AT_ONCE // cache.shape[3])
    tables = pad_pages(tables, pages)
    scale = head_dim**-0.5 if scale is None else scale
    queries = q.astype(held_dtype(cache)).reshape(rows, kv_heads, -1, head_dim)
    missing = max(FEWEST_QUERIES - queries.shape[2], 0)
    queries = jnp.pad(queries, ((0, 0), (0, 0), (0, missing), (0, 0)))
    if sinks is not None:
        sinks = jnp.pad(sinks.reshape(kv_heads, -1), ((0, 0), (0, missing)))
    if slopes is not None:
        slopes = jnp.pad(slopes.reshape(kv_heads, -1), ((0, 0), (0, missing)))
    if biases is not None:
        grouped = biases.reshape(kv_heads, -1, biases.shape[-1])
        biases = jnp.pad(grouped, ((0, 0), (0, missing), (0, 0)))

    def some_rows(q: Array, tables: Array, starts: Array, lengths: Array) -> SoftmaxState:
        return _attend_rows(
            q, cache, layer, tables, starts, lengths, pages, window, scale, soft_cap, slopes, biases
        )

    used = jnp.sum((lengths > 0).astype(jnp.int32))
    out, lse = in_groups(ROWS_AT_ONCE, used, some_rows, sinks, queries, tables, starts, lengths)
    own = slice(heads // kv_heads)
    out = out[:, :, own].reshape(rows, heads, head_dim).astype(dtype)
    lse = lse[:, :, own].reshape(rows, heads)
    # Padding rows in a group with used rows were computed too.
    real = jnp.broadcast_to(lengths[:, None] > 0, lse.shape)
    return out, jnp.where(real, lse, -jnp.inf)


def _attend_rows(
    q: Array,
    cache: Array,
    layer: int | Array,
    tables: Array,
    starts: Array,
    lengths: Array,
    pages: int,
    window: int | None,
    scale: float,
    soft_cap: float | None,
    slopes: Array | None,
    biases: Array | None,
) -> SoftmaxState:
    """Online softmax over chunks of pages for a few rows; q is [r, KV, G, D], slopes [KV, G],
    biases [KV, G, distances]."""
    span = pages * cache.shape[3]

    def some_pages(index: Array, running: SoftmaxState) -> SoftmaxState:
        blocks = lax.dynamic_slice_in_dim(tables, index * pages, pages, axis=1)
        position = starts[:, None] + index * span + jnp.arange(span, dtype=jnp.int32)[None, :]
        seen = position < lengths[:, None]
        if window is not None:
            seen &= position >= lengths[:, None] - window
        keys, values = read_heads(cache, layer, blocks, q.shape[-1], seen)
        distance = (position - lengths[:, None] + 1)[:, None, None, :]
        bias = sloped(slopes, distance) if biases is None else biased(biases, distance)
        return running.with_chunk(q, keys, values, seen[:, None, None, :], scale, soft_cap, bias)

    runs = -(-jnp.max(lengths - starts) // span)
    return lax.fori_loop(0, runs, some_pages, SoftmaxState.of_nothing(q))
