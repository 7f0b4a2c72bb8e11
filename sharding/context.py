"""Context parallelism over "dcp": token ownership and the merge of partial attention outputs.

To be called inside a function mapped by `on_each_device`. The tokens of a KV cache block are
divided in order: with blocks of 32 tokens and two devices, the first has tokens 0 to 15 of each. A
device's tokens keep the sequence's order and the keys visible to a query are a prefix of them, so
kernels can treat them as a shorter sequence.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from sharding.axes import CONTEXT, PREFILL

OUTSIDE = jnp.iinfo(jnp.int32).max


def own_slots(slots: Array, own_tokens: int, ways: int) -> Array:
    """Map slots of whole blocks to this device's slots; OUTSIDE for tokens of other devices.
    `own_tokens`: tokens per block and device, of which there are `ways`."""
    first = lax.axis_index(CONTEXT) * own_tokens
    block, offset = slots // (own_tokens * ways), slots % (own_tokens * ways) - first
    is_own = (slots != OUTSIDE) & (offset >= 0) & (offset < own_tokens)
    return jnp.where(is_own, block * own_tokens + offset, OUTSIDE)


def own_count(tokens: Array, own_tokens: int, ways: int) -> Array:
    """Number of this device's tokens among the first `tokens` of a sequence; values <= 0 are
    kept."""
    first = lax.axis_index(CONTEXT) * own_tokens
    blocks, rest = tokens // (own_tokens * ways), tokens % (own_tokens * ways)
    count = blocks * own_tokens + jnp.clip(rest - first, 0, own_tokens)
    return jnp.where(tokens > 0, count, tokens)


def of_all_tokens(own: Array) -> Array:
    """All-gather a per-token array over "pcp"."""
    return lax.all_gather(own, PREFILL, tiled=True)


def merged(
    part: Array, lse: Array, seen: Array, sinks: Array | None, scattered: int | None
) -> tuple[Array, Array]:
    """Merge attention over each device's own keys into attention over all. Returns float32 (output,
    log-sum-exp).

    part [T, ..., dim], lse [T, ...]. `seen` [T]: whether the query has any key here; otherwise its
    part may hold anything. Sinks [...] are an extra logit per query without a value. With
    `scattered`, each device gets its share of that dimension (reduce-scatter).
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
