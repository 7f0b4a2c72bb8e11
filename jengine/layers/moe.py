"""Mixture of experts: each token goes through the few experts that a router picks for it.

Tokens are sorted by expert, and one grouped matmul runs all experts; no token is ever dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.layers.mlp import gated

# Rows that the walk below multiplies at a time: experts mostly have few tokens of a step.
TILE = 8


def route(logits: Array, count: int, normalize: bool) -> tuple[Array, Array]:
    """The weights and numbers of each token's `count` best experts, both [T, count]."""
    chances = jax.nn.softmax(logits, axis=-1)
    weights, experts = lax.top_k(chances, count)
    if normalize:
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weights = weights / jnp.broadcast_to(total, weights.shape)
    return weights, experts


# Rows [R, in], sorted by expert, and each expert's number of rows, to [R, ...out].
GroupedMatmul = Callable[[Array, Array], Array]


def mix_experts(
    x: Array,
    weights: Array,
    experts: Array,
    num_experts: int,
    gate_up: GroupedMatmul,
    down: GroupedMatmul,
    activation: str,
) -> Array:
    """The weighted sum of what each token's experts make of it, [T, hidden].

    gate_up gives [R, inner, 2], down [R, hidden].
    """
    tokens, count = experts.shape
    chosen = experts.reshape(-1)  # [T * count]
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=num_experts).astype(jnp.int32)
    inside = gated(gate_up(x[order // count], sizes), activation, axis=-1)
    made = down(inside, sizes)
    # Back to the tokens' order by a gather: a scatter would add up in any order.
    made = made[jnp.argsort(order)].reshape(tokens, count, -1)
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
