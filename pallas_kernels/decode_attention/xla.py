"""Decode attention in plain XLA, shaped for CPUs.

A few rows at a time, so that their gathered keys stay in the processor's cache; all kv heads of a
token as one wide contraction, with each query laid into its own head's lanes: more arithmetic, but
one real matrix product instead of many tiny ones, in the type of the cache. Loops run as far as the
longest row needs.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pallas_kernels.layout import held_dtype, read_blocks

ROWS_AT_ONCE = 8, 4
TOKENS_AT_ONCE = 256
FAR_BELOW = -1e30  # finite, so that a fully masked tile stays free of NaN


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
) -> tuple[Array, Array]:
    """See `decode_attention`; returns the log-sum-exp as well."""
    rows = q.shape[0]
    step = next((few for few in ROWS_AT_ONCE if rows % few == 0), rows)
    block_size = cache.shape[3]
    pages = max(1, TOKENS_AT_ONCE // block_size)
    tables = pad_pages(tables, pages)
    wide = spread_heads(q.astype(held_dtype(cache)), cache.shape[-1] // head_dim)  # [R, H, W]
    scale = head_dim**-0.5 if scale is None else scale

    def some_rows(index: Array, out: tuple[Array, Array]) -> tuple[Array, Array]:
        first = index * step
        cut = lambda x: lax.dynamic_slice_in_dim(x, first, step)  # noqa: E731
        highest, total, mixed = _attend_rows(
            cut(wide), cache, layer, cut(tables), cut(starts), cut(lengths),
            pages, window, scale, soft_cap,
        )  # fmt: skip
        done = normalized(highest, total, mixed, sinks)
        put = lambda into, part: lax.dynamic_update_slice_in_dim(into, part, first, 0)  # noqa: E731
        return put(out[0], done[0]), put(out[1], done[1])

    used = jnp.sum((lengths > 0).astype(jnp.int32))
    nothing = jnp.zeros_like(wide, jnp.float32), jnp.full(wide.shape[:2], -jnp.inf, jnp.float32)
    wide_out, lse = lax.fori_loop(0, -(-used // step), some_rows, nothing)
    out = gather_heads(wide_out, cache.shape[-1] // head_dim).astype(dtype)
    # A padding row beside a used one has been through the loop too.
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
) -> tuple[Array, Array, Array]:
    """Running softmax over page runs for a few rows; q is [r, H, W]."""
    span = pages * cache.shape[3]
    rows, heads, width = q.shape

    def some_pages(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        blocks = lax.dynamic_slice_in_dim(tables, index * pages, pages, axis=1)
        keys, values = read_blocks(cache, layer, blocks)  # [r, S, W]
        position = starts[:, None] + index * span + jnp.arange(span, dtype=jnp.int32)[None, :]
        seen = position < lengths[:, None]
        if window is not None:
            seen &= position >= lengths[:, None] - window
        scores = capped(scale * product("rhw,rsw->rhs", q, keys), soft_cap)
        values = jnp.where(broadcast(seen, values), values, 0)
        return accumulate(carry, scores, values, seen[:, None, :], "rhs,rsw->rhw")

    carry = (
        jnp.full((rows, heads), FAR_BELOW, jnp.float32),
        jnp.zeros((rows, heads), jnp.float32),
        jnp.zeros((rows, heads, width), jnp.float32),
    )
    runs = -(-jnp.max(lengths - starts) // span)
    return lax.fori_loop(0, runs, some_pages, carry)


def normalized(
    highest: Array, total: Array, mixed: Array, sinks: Array | None
) -> tuple[Array, Array]:
    """The end of a running softmax over [..., H, q]: its result, and the logarithm of its sum.

    Sinks [H] are one more score for each query, whose value is zero.
    """
    if sinks is not None:
        sinks = jnp.broadcast_to(sinks.astype(jnp.float32), highest.shape)
        new_highest = jnp.maximum(highest, sinks)
        shrink = jnp.exp(highest - new_highest)
        total = total * shrink + jnp.exp(sinks - new_highest)
        mixed = mixed * jnp.broadcast_to(shrink[..., None], mixed.shape)
        highest = new_highest
    total = jnp.maximum(total, 1e-30)
    return mixed / jnp.broadcast_to(total[..., None], mixed.shape), highest + jnp.log(total)


def capped(scores: Array, soft_cap: float | None) -> Array:
    """Scores bent smoothly into (-soft_cap, soft_cap); None leaves them alone."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def accumulate(
    carry: tuple[Array, Array, Array], scores: Array, values: Array, seen: Array, equation: str
) -> tuple[Array, Array, Array]:
    """One step of the running softmax; scores and seen [b, q, S], values [b, S, d].

    Values that nobody sees must be zero already: 0 * NaN would leak what an unused slot holds.
    """
    highest, total, mixed = carry
    seen = jnp.broadcast_to(seen, scores.shape)
    scores = jnp.where(seen, scores, FAR_BELOW)
    new_highest = jnp.maximum(highest, jnp.max(scores, axis=-1))
    weights = jnp.where(seen, jnp.exp(scores - new_highest[..., None]), 0.0)
    shrink = jnp.exp(highest - new_highest)
    added = product(equation, weights.astype(values.dtype), values)
    mixed = mixed * jnp.broadcast_to(shrink[..., None], mixed.shape) + added
    return new_highest, total * shrink + jnp.sum(weights, axis=-1), mixed


def product(equation: str, left: Array, right: Array) -> Array:
    """einsum of two arrays of one type, bfloat16 or float32, summed up in float32."""
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def broadcast(flags: Array, like: Array) -> Array:
    """Flags [..., S] for every number of [..., S, d]."""
    return jnp.broadcast_to(flags[..., None], like.shape)


def pad_pages(tables: Array, multiple: int) -> Array:
    """Tables widened with the null block, so that whole runs of pages can be cut."""
    missing = -tables.shape[1] % multiple
    return jnp.pad(tables, ((0, 0), (0, missing)))


def spread_heads(q: Array, kv_heads: int) -> Array:
    """[..., H, D] -> [..., H, kv_heads * D], zero outside the lanes of the query's own kv head."""
    heads, dim = q.shape[-2:]
    full = jnp.broadcast_to(q[..., None, :], (*q.shape[:-1], kv_heads, dim))
    lanes = jnp.broadcast_to(own_lanes(heads, kv_heads), full.shape)
    return jnp.where(lanes, full, 0).reshape(*q.shape[:-1], kv_heads * dim)


def gather_heads(wide: Array, kv_heads: int) -> Array:
    """[..., H, kv_heads * D] -> [..., H, D]: each query's own lanes."""
    heads, width = wide.shape[-2:]
    split = wide.reshape(*wide.shape[:-1], kv_heads, width // kv_heads)
    lanes = jnp.broadcast_to(own_lanes(heads, kv_heads), split.shape)
    return jnp.sum(jnp.where(lanes, split, 0.0), axis=-2)  # one term is not zero


def own_lanes(heads: int, kv_heads: int) -> Array:
    """bool [H, kv_heads, 1]: whether a kv head is the query head's own. A constant."""
    own = np.arange(heads)[:, None] // (heads // kv_heads) == np.arange(kv_heads)[None, :]
    return jnp.asarray(own[..., None])
