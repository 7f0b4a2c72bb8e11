"""Attention whose keys are divided among the devices of the axis "dcp": who has which tokens, and
how partial results become one. To be called inside a function that `on_each_device` maps.

The tokens of a block of the KV cache are divided in order: with blocks of 32 tokens and two devices
the first has tokens 0 to 15 of each. So what a device has of a sequence is in the sequence's order,
and the keys that a query sees are the first ones there: kernels take it as a shorter sequence.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from sharding.axes import CONTEXT, PREFILL

OUTSIDE = jnp.iinfo(jnp.int32).max


def own_slots(slots: Array, own_tokens: int, ways: int) -> Array:
    """This device's token slots, given those of whole blocks; out of range for tokens of others.

    `own_tokens`: how many of a block's tokens each of the `ways` devices has.
    """
    first = lax.axis_index(CONTEXT) * own_tokens
    block, offset = slots // (own_tokens * ways), slots % (own_tokens * ways) - first
    is_own = (slots != OUTSIDE) & (offset >= 0) & (offset < own_tokens)
    return jnp.where(is_own, block * own_tokens + offset, OUTSIDE)


def own_count(tokens: Array, own_tokens: int, ways: int) -> Array:
    """How many of the first `tokens` of a sequence this device has; 0 or less stays as it is."""
    first = lax.axis_index(CONTEXT) * own_tokens
    blocks, rest = tokens // (own_tokens * ways), tokens % (own_tokens * ways)
    count = blocks * own_tokens + jnp.clip(rest - first, 0, own_tokens)
    return jnp.where(tokens > 0, count, tokens)


def of_all_tokens(own: Array) -> Array:
    """An array over the tokens of a step, given those that this device computes along "pcp"."""
    return lax.all_gather(own, PREFILL, tiled=True)


def merged(
    part: Array, lse: Array, seen: Array, sinks: Array | None, scattered: int | None
) -> tuple[Array, Array]:
    """Attention to all keys, float32, and its log-sum-exp, given those of each device's own keys.

    part [T, ..., dim], lse [T, ...]; `seen` [T]: whether a query has seen a key here, else its part
    may hold anything. Sinks [...] are one more score of every query, without a value. With
    `scattered` each device gets its share of that dimension of both.
    """
    is_seen = seen.reshape(-1, *(1,) * (lse.ndim - 1))
    lse = jnp.where(is_seen, lse, -jnp.inf)
    total = jax.nn.logsumexp(lax.all_gather(lse, CONTEXT), axis=0)
    if sinks is not None:
        total = jnp.logaddexp(total, sinks[None].astype(jnp.float32))
    weight = jnp.where(lse > -jnp.inf, jnp.exp(lse - total), 0.0)[..., None]
    share = jnp.where(is_seen[..., None], part.astype(jnp.float32) * weight, 0.0)
    if scattered is None:
        return lax.psum(share, CONTEXT), total
    size = total.shape[scattered] // lax.axis_size(CONTEXT)
    first = lax.axis_index(CONTEXT) * size
    own = lax.dynamic_slice_in_dim(total, first, size, scattered)
    return lax.psum_scatter(share, CONTEXT, scatter_dimension=scattered, tiled=True), own
