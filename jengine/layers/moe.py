"""Mixture of experts: each token goes through the few experts that a router picks for it.

Tokens are sorted by expert, so that each expert's tokens lie together and a grouped matrix product
runs all experts at once; no token is ever dropped.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.linear import project
from jengine.layers.mlp import gated, gated_mlp


def route(x: Array, router: Array, count: int, normalize: bool) -> tuple[Array, Array]:
    """The weights and numbers of each token's `count` best experts, both [T, count]."""
    chances = jax.nn.softmax(project("th,he->te", x, router), axis=-1)
    weights, experts = lax.top_k(chances, count)
    if normalize:
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights / jnp.broadcast_to(total, weights.shape)
    return weights, experts


def experts_mlp(
    x: Array, weights: Array, experts: Array, gate_up: Array, down: Array, activation: str
) -> Array:
    """The weighted sum of what each token's experts make of it, [T, hidden].

    gate_up is [experts, hidden, 2, inner], down [experts, inner, hidden].
    """
    num_experts, hidden, _, inner = gate_up.shape
    tokens, count = experts.shape
    chosen = experts.reshape(-1)  # [T * count]
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=num_experts).astype(jnp.int32)
    sorted_x = x[order // count]
    both = grouped_project(sorted_x, gate_up.reshape(num_experts, hidden, 2 * inner), sizes)
    made = grouped_project(gated(both.reshape(-1, 2, inner), activation), down, sizes)
    # Back to the tokens' order by a gather: a scatter would add up in any order.
    made = made[jnp.argsort(order)].reshape(tokens, count, hidden)
    return jnp.sum(made * jnp.broadcast_to(weights[..., None], made.shape), axis=1)


def grouped_project(x: Array, weight: Array, sizes: Array) -> Array:
    """Rows of x [R, in], sorted by group, times their group's matrix [groups, in, out]; float32."""
    return lax.ragged_dot(x.astype(weight.dtype), weight, sizes, preferred_element_type=jnp.float32)


def experts_mlp_reference(
    x: Array, weights: Array, experts: Array, gate_up: Array, down: Array, activation: str
) -> Array:
    """What `experts_mlp` computes, plainly: every expert on every token. For tests."""
    total = jnp.zeros(x.shape, jnp.float32)
    for expert in range(gate_up.shape[0]):
        share = jnp.sum(jnp.where(experts == expert, weights, 0.0), axis=-1, keepdims=True)
        made = gated_mlp(x, gate_up[expert], down[expert], activation)
        total = total + made * jnp.broadcast_to(share, made.shape)
    return total
