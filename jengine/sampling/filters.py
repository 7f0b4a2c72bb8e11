"""Filters min-p, top-k and top-p without sorting.

In: float32 logits after temperature. Out: the same logits, -inf where a token is cut. Each cut is a
threshold, found by bisection over integers that order like the floats; ties keep the lowest
indices, as a stable descending sort does. Must not know: temperature, randomness, row state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float32, Int32

_LOWEST_FINITE = -0x7F800000  # order key of the most negative finite float32


class Threshold(NamedTuple):
    """A threshold: tokens above it are kept, and of those equal to it the first `room`."""

    threshold: Array  # i32[S] order key
    room: Array  # f32[S]


def cut_logits(
    logits: Float32[Array, "slots vocab"],
    top_k: Int32[Array, " slots"],
    top_p: Float32[Array, " slots"],
    min_p: Float32[Array, " slots"],
) -> Float32[Array, "slots vocab"]:
    """Apply min-p, then top-k, then top-p of the remaining mass. Off: k <= 0, p >= 1, min_p <= 0.

    At most 3 bisections of 32 passes over [S, V], which stop when every row is done.
    """
    with jax.named_scope("min_p"):
        weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))  # the best weighs 1
        unlikely = weights < jnp.minimum(min_p, 1.0)[:, None]
        weights = jnp.where(unlikely, 0.0, weights)
        keys = _order_keys(jnp.where(unlikely, -jnp.inf, logits))
    with jax.named_scope("top_k"):
        cut = _top_k(keys, top_k)
    with jax.named_scope("top_p"):
        cut = _top_p(keys, weights, top_p, cut)
    with jax.named_scope("cut"):
        return jnp.where(_kept(keys, cut), logits, -jnp.inf)


def _top_k(keys: Array, top_k: Array) -> Threshold:
    vocab = keys.shape[1]
    limited = (top_k > 0) & (top_k < vocab)
    count = jnp.where(limited, top_k, vocab).astype(jnp.float32)
    one = jnp.float32(1)
    low = jnp.full(limited.shape, _LOWEST_FINITE, jnp.int32)
    threshold = _search(keys, one, count, low, _end(keys, low, limited))
    return Threshold(threshold, count - _mass_from(keys, one, threshold + 1))


def _top_p(keys: Array, weights: Array, top_p: Array, cut: Threshold) -> Threshold:
    """Tighten `cut` to the shortest prefix with top_p of its mass; at least one token."""
    limited = top_p < 1
    ties, weight = _ties(keys, weights, cut.threshold)
    total = _mass_from(keys, weights, cut.threshold + 1) + jnp.minimum(ties, cut.room) * weight
    target = top_p * total
    end = _end(keys, cut.threshold, limited)
    threshold = _search(keys, weights, target, cut.threshold, end)

    ties, weight = _ties(keys, weights, threshold)
    missing = target - _mass_from(keys, weights, threshold + 1)
    room = jnp.maximum(jnp.ceil(missing / weight), 1.0)  # 0 is missing where p is 0
    return Threshold(threshold, jnp.where(limited, room, cut.room))


def _kept(keys: Array, cut: Threshold) -> Array:
    """Mask bool[S, V] of kept tokens; the last tie is found by the same bisection, over indices."""
    vocab = keys.shape[1]
    index = lax.broadcasted_iota(jnp.int32, keys.shape, 1)
    tied = keys == cut.threshold[:, None]
    ties = tied.astype(jnp.float32)
    surplus = jnp.sum(ties, axis=-1) > cut.room
    low = jnp.full(surplus.shape, 1 - vocab, jnp.int32)
    last = -_search(-index, ties, cut.room, low, jnp.where(surplus, 1, low + 1))
    return (keys > cut.threshold[:, None]) | (tied & (index <= last[:, None]))


def _order_keys(logits: Array) -> Array:
    """Monotonic int32 keys of floats, with -0 equal to 0."""
    bits = lax.bitcast_convert_type(jnp.where(logits == 0, 0.0, logits), jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _end(keys: Array, low: Array, limited: Array) -> Array:
    """Exclusive upper end of a bisection from `low`: past the best key, or `low + 1` for a row
    without limit."""
    return jnp.where(limited, jnp.max(keys, axis=-1), low) + 1


def _mass_from(keys: Array, weights: Array, threshold: Array) -> Array:
    """Total weight of entries at or above the threshold, f32[S]."""
    return jnp.sum(jnp.where(keys >= threshold[:, None], weights, 0.0), axis=-1)


def _ties(keys: Array, weights: Array, threshold: Array) -> tuple[Array, Array]:
    """Number of entries equal to the threshold, f32[S], and the weight of one."""
    tied = keys == threshold[:, None]
    weight = jnp.max(jnp.where(tied, weights, 0.0), axis=-1)
    return jnp.sum(tied.astype(jnp.float32), axis=-1), weight


def _search(keys: Array, weights: Array, target: Array, low: Array, high: Array) -> Array:
    """Bisect for the largest integer in [low, high) with at least `target` mass at or above it;
    `low` if there is none.

    Rows that meet the target exactly stop early: no other threshold keeps a different set.
    """

    def unfinished(bracket: tuple[Array, Array]) -> Array:
        low, high = bracket
        return jnp.any(low + 1 < high)

    def halve(bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # (low + high) // 2, no overflow
        mass = _mass_from(keys, weights, middle)
        high = jnp.where(mass == target, middle + 1, jnp.where(mass > target, high, middle))
        return jnp.where(mass >= target, middle, low), high

    return lax.while_loop(unfinished, halve, (low, high))[0]
