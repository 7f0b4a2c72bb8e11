"""Online softmax over chunks of keys, shared by the attention implementations in plain XLA.

In: queries [batch, KV, q, D], and keys and values [batch, KV, S, D] chunk by chunk. Out: attention
outputs and log-sum-exp. A query without keys gets zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

FAR_BELOW = -1e30  # finite: a chunk in which all keys of a query are masked gives no NaN


class SoftmaxState(NamedTuple):
    """State of the online softmax: running maximum, sum of exponentials, and weighted values."""

    highest: Array  # f32 [batch, KV, q]
    total: Array  # f32 [batch, KV, q]
    mixed: Array  # f32 [batch, KV, q, D of values]

    @classmethod
    def of_nothing(cls, queries: Array, dim: int | None = None) -> SoftmaxState:
        """Initial state; `dim` is the width of values where it differs from that of queries."""
        lowest = jnp.full(queries.shape[:-1], FAR_BELOW, jnp.float32)
        mixed = jnp.zeros((*lowest.shape, dim or queries.shape[-1]), jnp.float32)
        return cls(lowest, jnp.zeros_like(lowest), mixed)

    def with_chunk(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        seen: Array,
        scale: float,
        soft_cap: float | None,
        bias: Array | None = None,
    ) -> SoftmaxState:
        """Add a chunk. `seen` [batch, 1, q or 1, S] masks keys; `bias` [batch, KV, q, S] is added
        to scores.

        Keys and values masked for all queries must be zero, since an unused slot may hold NaN. What
        a query accumulates while all its keys are masked is multiplied by 0 later.
        """
        scores = capped(scale * einsum("bkqd,bksd->bkqs", queries, keys), soft_cap)
        scores = scores if bias is None else scores + bias
        scores = jnp.where(seen, scores, FAR_BELOW)
        highest = jnp.maximum(self.highest, jnp.max(scores, axis=-1))
        weights = jnp.exp(scores - highest[..., None])
        added = einsum("bkqs,bksd->bkqd", weights.astype(values.dtype), values)
        shrink = jnp.exp(self.highest - highest)
        return SoftmaxState(
            highest,
            self.total * shrink + jnp.sum(weights, axis=-1),
            self.mixed * shrink[..., None] + added,
        )

    def result(self, sinks: Array | None) -> tuple[Array, Array]:
        """Return (outputs, log-sum-exp). Sinks [KV, q] are an extra logit per query without a
        value."""
        highest, total, mixed = self
        # If all keys of a query were masked, its sums are over masked keys.
        total = jnp.where(highest > FAR_BELOW, total, 0.0)
        mixed = jnp.where((highest > FAR_BELOW)[..., None], mixed, 0.0)
        if sinks is not None:
            sinks = jnp.broadcast_to(sinks.astype(jnp.float32), highest.shape)
            new_highest = jnp.maximum(highest, sinks)
            shrink = jnp.exp(highest - new_highest)
            total = total * shrink + jnp.exp(sinks - new_highest)
            mixed = mixed * shrink[..., None]
            highest = new_highest
        total = jnp.maximum(total, 1e-30)
        return mixed / total[..., None], highest + jnp.log(total)


def in_groups(
    sizes: Sequence[int], used: Array, attend: Callable[..., SoftmaxState], sinks: Array | None,
    queries: Array, *others: Array, dim: int | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Apply `attend` to the first `used` entries of all arrays, a group at a time; others give
    zeros.

    The group size is the first of `sizes` that divides the number of entries. `dim` is the width of
    values where it differs from that of queries.
    """
    count = queries.shape[0]
    size = next((few for few in sizes if count % few == 0), count)

    def one_group(index: Array, out: tuple[Array, Array]) -> tuple[Array, Array]:
        first = index * size
        parts = [lax.dynamic_slice_in_dim(x, first, size) for x in (queries, *others)]
        mixed, lse = attend(*parts).result(sinks)
        return (
            lax.dynamic_update_slice_in_dim(out[0], mixed, first, 0),
            lax.dynamic_update_slice_in_dim(out[1], lse, first, 0),
        )

    mixed = jnp.zeros((*queries.shape[:-1], dim or queries.shape[-1]), jnp.float32)
    nothing = mixed, jnp.zeros(queries.shape[:-1], jnp.float32)
    return lax.fori_loop(0, -(-used // size), one_group, nothing)


def sloped(slopes: Array | None, distance: Array) -> Array | None:
    """ALiBi bias of slopes [KV, q] for key positions minus query positions `distance` [batch, 1, q
    or 1, S]."""
    if slopes is None:
        return None
    wide = slopes.astype(jnp.float32)[None, :, :, None]
    shape = jnp.broadcast_shapes(wide.shape, distance.shape)
    return jnp.broadcast_to(wide, shape) * jnp.broadcast_to(distance, shape).astype(jnp.float32)


def biased(biases: Array | None, distance: Array) -> Array | None:
    """Relative position bias from a table [KV, q, distances] for key minus query positions
    `distance` [batch, 1, q or 1, S]; distances beyond the table use its last entry."""
    if biases is None:
        return None
    kv_heads, queries, distances = biases.shape
    before = jnp.clip(-distance, 0, distances - 1)
    kv_head = jnp.arange(kv_heads)[None, :, None, None]
    query = jnp.arange(queries)[None, None, :, None]
    return biases.astype(jnp.float32).at[kv_head, query, before].get(mode="promise_in_bounds")


def capped(scores: Array, soft_cap: float | None) -> Array:
    """soft_cap * tanh(scores / soft_cap); None leaves scores alone."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def einsum(equation: str, left: Array, right: Array) -> Array:
    """einsum of two arrays of one dtype, accumulated in float32."""
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
