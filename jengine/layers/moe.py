"""Mixture of experts: each token goes through the few experts that a router picks for it.

Tokens are sorted by expert, so that each expert's tokens lie together and a grouped matrix product
runs all experts at once; no token is ever dropped.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.linear import project
from jengine.layers.mlp import gated, gated_mlp

# Rows that the walk below multiplies at a time: experts mostly have few tokens of a step.
TILE = 8


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

    gate_up is [experts, hidden, inner, 2], so that splitting `inner` over devices also splits the
    columns of gate and up as one matrix; down is [experts, inner, hidden].
    """
    num_experts, hidden, inner, _ = gate_up.shape
    tokens, count = experts.shape
    chosen = experts.reshape(-1)  # [T * count]
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=num_experts).astype(jnp.int32)
    sorted_x = x[order // count]
    both = grouped_project(sorted_x, gate_up.reshape(num_experts, hidden, inner * 2), sizes)
    inside = gated(both.reshape(-1, inner, 2), activation, axis=-1)
    made = grouped_project(inside, down, sizes)
    # Back to the tokens' order by a gather: a scatter would add up in any order.
    made = made[jnp.argsort(order)].reshape(tokens, count, hidden)
    return jnp.sum(made * jnp.broadcast_to(weights[..., None], made.shape), axis=1)


def grouped_project(x: Array, weight: Array, sizes: Array) -> Array:
    """Rows of x [R, in], sorted by group, times their group's matrix [groups, in, out]; float32."""
    ragged = partial(lax.ragged_dot, preferred_element_type=jnp.float32)
    # On the CPU ragged_dot multiplies every row by every matrix, and copies the matrices first.
    return lax.platform_dependent(
        x.astype(weight.dtype), weight, sizes, cpu=walk_groups, default=ragged
    )


def walk_groups(x: Array, weight: Array, sizes: Array) -> Array:
    """`grouped_project`, a few rows of one group at a time; groups without rows cost nothing.

    A group's last tile runs over into the next group, whose own tiles come later and overwrite it.
    """
    rows, groups = x.shape[0], weight.shape[0]
    first_row = jnp.cumsum(sizes) - sizes
    tiles = -(-sizes // TILE)
    end_tile = jnp.cumsum(tiles)
    padded = jnp.pad(x, ((0, TILE), (0, 0)))

    def one_tile(tile: Array, out: Array) -> Array:
        group = jnp.sum(end_tile <= tile)
        row = first_row[group] + (tile - end_tile[group] + tiles[group]) * TILE
        part = lax.dynamic_slice_in_dim(padded, row, TILE)
        made = jnp.dot(part, weight[group], preferred_element_type=jnp.float32)
        return lax.dynamic_update_slice_in_dim(out, made, row, 0)

    def maybe_tile(tile: Array, out: Array) -> Array:
        return lax.cond(tile < end_tile[-1], one_tile, lambda _, same: same, tile, out)

    # A fixed number of turns, so that gradients exist. A conversion of all matrices cannot be moved
    # out of a condition, as it is out of a loop.
    most = min(groups, rows) + rows // TILE
    out = jnp.zeros((rows + TILE, weight.shape[2]), jnp.float32)
    return lax.fori_loop(0, most, maybe_tile, out)[:rows]


def experts_mlp_reference(
    x: Array, weights: Array, experts: Array, gate_up: Array, down: Array, activation: str
) -> Array:
    """What `experts_mlp` computes, plainly: every expert on every token. For tests."""
    total = jnp.zeros(x.shape, jnp.float32)
    for expert in range(gate_up.shape[0]):
        share = jnp.sum(jnp.where(experts == expert, weights, 0.0), axis=-1, keepdims=True)
        made = gated_mlp(x, jnp.swapaxes(gate_up[expert], 1, 2), down[expert], activation)
        total = total + made * jnp.broadcast_to(share, made.shape)
    return total
