"""Online softmax over chunks of keys, shared by decode and prefill attention in plain XLA.

In: queries [batch, KV, q, D], and keys and values [batch, KV, S, D] chunk by chunk. Out: the
weighted sums of values and the log-sum-exp. A query that attends to no key gets zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

FAR_BELOW = -1e30  # finite: a chunk in which all keys of a query are masked gives no NaN


class Running(NamedTuple):
    """The online softmax after some chunks."""

    highest: Array  # f32 [batch, KV, q]
    total: Array  # f32 [batch, KV, q]
    mixed: Array  # f32 [batch, KV, q, D of values]

    @classmethod
    def of_nothing(cls, queries: Array, dim: int | None = None) -> Running:
        """Before the first chunk; `dim` is the length of values, if it is not that of queries."""
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
    ) -> Running:
        """Add a chunk; `seen` [batch, 1, q or 1, S] masks its keys, and `bias` [batch, KV, q, S] is
        added to their scores.

        Keys and values that are masked for all queries must be zero, since an unused slot may hold
        NaN. The values that a query adds while all its keys are masked are later multiplied by 0.
        """
        scores = capped(scale * einsum("bkqd,bksd->bkqs", queries, keys), soft_cap)
        scores = scores if bias is None else scores + bias
        scores = jnp.where(seen, scores, FAR_BELOW)
        highest = jnp.maximum(self.highest, jnp.max(scores, axis=-1))
        weights = jnp.exp(scores - highest[..., None])
        added = einsum("bkqs,bksd->bkqd", weights.astype(values.dtype), values)
        shrink = jnp.exp(self.highest - highest)
        return Running(
            highest,
            self.total * shrink + jnp.sum(weights, axis=-1),
            self.mixed * shrink[..., None] + added,
        )

    def result(self, sinks: Array | None) -> tuple[Array, Array]:
        """The weighted sums of values and the log-sum-exp.

        Sinks [KV, q] are one more score per query, whose value is zero.
        """
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
    sizes: Sequence[int], used: Array, attend: Callable[..., Running], sinks: Array | None,
    queries: Array, *others: Array, dim: int | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Apply `attend` to the first `used` entries of all arrays, one group at a time.

    The group size is the first of `sizes` that divides their number; the other entries are zero.
    `dim` is the length of values, if it is not that of queries.
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
    """What slopes [KV, q] add to scores of keys that lie `distance` [batch, 1, q or 1, S] behind
    their query: less than zero for those before it."""
    if slopes is None:
        return None
    wide = slopes.astype(jnp.float32)[None, :, :, None]
    shape = jnp.broadcast_shapes(wide.shape, distance.shape)
    return jnp.broadcast_to(wide, shape) * jnp.broadcast_to(distance, shape).astype(jnp.float32)


def biased(biases: Array | None, distance: Array) -> Array | None:
    """What a table [KV, q, distances] adds to scores of keys that lie `distance` [batch, 1, q or 1,
    S] behind their query. Those further before it than the table goes take its last number."""
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
    """einsum of two arrays of one dtype, bfloat16 or float32, accumulated in float32."""
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
