"""Multi-head latent attention (MLA): its cache entries, and the expanded and absorbed forms.

A token's cache entry is a compressed vector and a rotated key shared by all heads. Expanded,
per-head keys and values are computed from it: less work for many queries (prefill). Absorbed,
queries are projected into the latent space and outputs back, so attention reads only entries
(decode).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from jengine.config import LatentConfig
from jengine.layers.attention import causal_mask
from jengine.layers.linear import project
from jengine.layers.rope import rotate, rotate_neighbours

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32


class LatentInputs(NamedTuple):
    """Queries and cache entries of one layer, before rotation."""

    config: LatentConfig
    q: Array  # [..., heads, nope + rope]
    entries: Array  # [..., rank + rope]
    up: Array  # [heads, nope + value, rank]: projects a latent vector to a head's keys and values
    rotation: tuple[Array, Array]  # cos and sin, [..., rope / 2] each

    def rotated(
        self,
    ) -> tuple[Float[Array, "*tokens heads query"], Float[Array, "*tokens entry"]]:
        """Return (queries, entries) with rotary embedding applied to the last `rope_dim` lanes."""
        turn = rotate_neighbours if self.config.interleaved else rotate
        with jax.named_scope("rope"):
            plain, turned = jnp.split(self.q, [self.config.nope_dim], axis=-1)
            q = jnp.concatenate([plain, turn(turned, *self.rotation)], axis=-1)
            vector, key = jnp.split(self.entries, [self.config.kv_rank], axis=-1)
            key = turn(key[..., None, :], *self.rotation)[..., 0, :]
            return q, jnp.concatenate([vector, key], axis=-1)

    def absorbed(
        self, q: Float[Array, "*tokens heads query"], dtype: DTypeLike
    ) -> Float[Array, "*tokens heads entry"]:
        """Project queries into the latent space, where q . entry equals q . expanded key."""
        plain, turned = jnp.split(q, [self.config.nope_dim], axis=-1)
        keys = self.up[:, : self.config.nope_dim]
        made = multiplied("...hn,hnr->...hr", plain, keys).astype(dtype)
        return jnp.concatenate([made, turned.astype(dtype)], axis=-1)

    def values(
        self, mixed: Float[Array, "*tokens heads rank"]
    ) -> Float32[Array, "*tokens heads value"]:
        """Project attention outputs from the latent space to per-head values."""
        return multiplied("...hr,hvr->...hv", mixed, self.up[:, self.config.nope_dim :])

    def expanded(
        self, entries: Float[Array, "*tokens entry"], dtype: DTypeLike
    ) -> tuple[Float[Array, "*tokens heads query"], Float[Array, "*tokens heads value"]]:
        """Compute per-head keys and values from rotated cache entries."""
        vector, key = jnp.split(entries, [self.config.kv_rank], axis=-1)
        made = multiplied("...r,hor->...ho", vector, self.up).astype(dtype)
        plain, values = jnp.split(made, [self.config.nope_dim], axis=-1)
        shape = (*plain.shape[:-1], self.config.rope_dim)
        key = jnp.broadcast_to(key[..., None, :].astype(dtype), shape)
        return jnp.concatenate([plain, key], axis=-1), values


def multiplied(
    equation: str, x: Float[Array, "..."], weight: Float[Array, "..."]
) -> Float32[Array, "..."]:
    """`einsum(equation, x, weight)` in the weight's dtype. On CPUs, where XLA has no batched
    bfloat16 matmul, the operands are rounded to that dtype and multiplied in float32."""
    if weight.dtype == jnp.float32:
        return project(equation, x, weight)

    def wide(x: Array, weight: Array) -> Array:
        return project(equation, x, weight.astype(jnp.float32))

    given = x.astype(weight.dtype), weight
    return lax.platform_dependent(*given, cpu=wide, default=partial(project, equation))


def dense_latent_attention(inputs: LatentInputs) -> Float[Array, "batch length heads value"]:
    """Causal attention over whole sequences, without a cache, in the expanded form."""
    q, entries = inputs.rotated()
    keys, values = inputs.expanded(entries, q.dtype)
    scores = jnp.einsum("bthd,bshd->bhts", q, keys) * inputs.config.scale
    mask = jnp.broadcast_to(causal_mask(q.shape[1], inputs.config.window), scores.shape)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhts,bshv->bthv", weights, values)
