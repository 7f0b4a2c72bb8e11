"""Sampling in plain XLA by sorting: short, and slow for large vocabularies.

Gumbel noise uses all 32 threefry bits of (key, token id): a float of 23 bits is too coarse in the
tail, and unlikely tokens would be drawn far too rarely.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

GREEDY_BELOW = 1e-5  # a lower temperature means greedy; a test holds the other kernels to it


def best_tokens_xla(logits: Array) -> Array:
    """See `best_tokens`. Two vectorised passes: XLA's argmax is a scalar loop on CPUs, 3 times
    slower."""
    logits = logits.astype(jnp.float32)
    # NaN is made +inf, because XLA's maximum on the CPU passes over NaN where rows are long.
    highest = jnp.max(jnp.where(jnp.isnan(logits), jnp.inf, logits), axis=-1, keepdims=True)
    index = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    first = jnp.min(jnp.where(logits == highest, index, logits.shape[1]), axis=-1)
    return jnp.where(jnp.isfinite(highest[:, 0]), first, -1)


def sample_tokens_xla(
    logits: Array, keys: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array
) -> Array:
    """See `sample_tokens`."""
    logits = logits.astype(jnp.float32)
    # NaN is tested separately: XLA's maximum on CPUs may ignore it.
    usable = jnp.isfinite(jnp.max(logits, axis=-1)) & ~jnp.any(jnp.isnan(logits), axis=-1)
    random = temperature >= GREEDY_BELOW
    scaled = logits / jnp.where(random, temperature, 1.0)[:, None]
    drawn = jnp.where(kept(scaled, top_k, top_p, min_p), scaled + gumbel(keys, logits), -jnp.inf)
    best = jnp.argmax(jnp.where(random[:, None], drawn, logits), axis=-1)
    return jnp.where(usable, best.astype(jnp.int32), -1)


def kept(logits: Array, top_k: Array, top_p: Array, min_p: Array) -> Array:
    """Mask of tokens left by min-p, top-k and top-p, bool[S, V], by a stable descending sort."""
    vocab = logits.shape[1]
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    left = (weights >= jnp.minimum(min_p, 1.0)[:, None]) & (logits > -jnp.inf)
    order = jnp.argsort(jnp.where(left, -logits, jnp.inf), axis=-1, stable=True)
    ordered = jnp.take_along_axis(jnp.where(left, weights, 0.0), order, axis=-1)
    rank = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    limit = jnp.where((top_k > 0) & (top_k < vocab), top_k, vocab)[:, None]
    within = rank < limit
    mass = jnp.cumsum(jnp.where(within, ordered, 0.0), axis=-1)
    # A token stays while those before it fall short of p of the mass; the first one always does.
    before = jnp.concatenate([jnp.zeros_like(mass[:, :1]), mass[:, :-1]], axis=-1)
    within &= (before < top_p[:, None] * mass[:, -1:]) | (top_p >= 1)[:, None] | (rank == 0)
    rows = lax.broadcasted_iota(jnp.int32, logits.shape, 0)
    return left & jnp.zeros_like(left).at[rows, order].set(within, unique_indices=True)


def gumbel(keys: Array, logits: Array) -> Array:
    """Finite Gumbel noise f32[S, V] from keys u32[S, 2]."""

    def row_bits(words: Array) -> Array:
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return jax.random.bits(key, logits.shape[1:], jnp.uint32)

    uniform = (jax.vmap(row_bits)(keys).astype(jnp.float32) + 0.5) * 2.0**-32
    uniform = jnp.minimum(uniform, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))
