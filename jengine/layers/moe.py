"""Mixture of experts.

Tokens are sorted by expert and run in one grouped matmul per projection; no token is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from jengine.config import RoutingConfig

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Float32, Int

# Rows per tile of `matmul_by_tiles`: in a decode step most experts have few tokens.
TILE = 8
# Added to a sum of scores before dividing by it: sigmoids may all be zero.
SMALLEST_TOTAL = 1e-20


class Picked(NamedTuple):
    """Top-k experts of each token and their mixing weights."""

    weights: Float[Array, "tokens chosen"]
    experts: Int[Array, "tokens chosen"]
    slots: Int[Array, " tokens"] | None = None  # adapter slots, numbered from 1; 0: none


def route(
    logits: Float[Array, "tokens num_experts"],
    count: int,
    config: RoutingConfig,
    *,
    bias: Float[Array, " num_experts"] | None = None,
    softmax: Callable[[Array], Array] = jax.nn.softmax,
) -> Picked:
    """Pick the top `count` experts of each token. `bias` affects the choice, not the weights."""
    if config.scores == "sparse_mixer":
        return sparse_mixer(logits, count, config.jitter)
    scores = softmax(logits) if config.scores == "softmax" else jax.nn.sigmoid(logits)
    ranked = logits if config.chooses_by_logits else scores
    ranked = ranked if bias is None else ranked + jnp.broadcast_to(bias, ranked.shape)
    if config.groups > 1:
        ranked = in_top_groups(ranked, config)
    _, experts = lax.top_k(ranked, count)
    weights = jnp.take_along_axis(scores, experts, axis=-1)
    if config.normalize:
        # A chain of additions: XLA's summation order depends on the number of tokens.
        total = reduce(add, (weights[:, i] for i in range(count))) + SMALLEST_TOTAL
        weights = weights / jnp.broadcast_to(total[:, None], weights.shape)
    return Picked(weights if config.scale == 1.0 else weights * config.scale, experts)


def sparse_mixer(logits: Float[Array, "tokens num_experts"], count: int, jitter: float) -> Picked:
    """Pick the best expert, then the best of the rest. A weight is the expert's softmax among those
    not yet picked, without those worse by more than 2 * jitter, relatively (SparseMixer-v2)."""
    logits, left = logits.astype(jnp.float32), logits.astype(jnp.float32)
    weights, experts = [], []
    for _ in range(count):
        chosen = jnp.argmax(left, axis=-1)
        best = jnp.max(left, axis=-1, keepdims=True)
        worse = (best - logits) / jnp.maximum(jnp.abs(logits), best)
        near = jnp.where(worse > 2 * jitter, -jnp.inf, left)
        weights.append(1.0 / jnp.sum(jnp.exp(near - best), axis=-1))
        experts.append(chosen)
        is_chosen = jax.nn.one_hot(chosen, logits.shape[-1], dtype=bool)
        left = jnp.where(is_chosen, -jnp.inf, left)
    return Picked(jnp.stack(weights, axis=-1), jnp.stack(experts, axis=-1))


def in_top_groups(
    ranked: Float[Array, "tokens num_experts"], config: RoutingConfig
) -> Float[Array, "tokens num_experts"]:
    """Set scores of experts outside each token's best groups to -inf (group-limited routing)."""
    tokens = ranked.shape[0]
    grouped = ranked.reshape(tokens, config.groups, -1)
    if config.group_score == "best":
        groups = jnp.max(grouped, axis=-1)
    else:
        first, second = jnp.moveaxis(lax.top_k(grouped, 2)[0], -1, 0)
        groups = first + second
    _, best = lax.top_k(groups, config.top_groups)  # [tokens, top_groups]
    is_best = jnp.any(jax.nn.one_hot(best, config.groups, dtype=bool), axis=1)
    kept = jnp.broadcast_to(is_best[:, :, None], grouped.shape)
    return jnp.where(kept, grouped, -jnp.inf).reshape(ranked.shape)


# (rows [R, in] sorted by expert, rows per expert, token of each row) -> [R, ...out]
GroupedMatmul = Callable[[Array, Array, Array], Array]


def mix_experts(
    x: Float[Array, "tokens hidden"],
    weights: Float[Array, "tokens chosen"],
    experts: Int[Array, "tokens chosen"],
    num_experts: int,
    gate_up: GroupedMatmul,
    down: GroupedMatmul,
    live: Int[Array, " tokens"] | None = None,
) -> Float32[Array, "tokens hidden"]:
    """Return the weighted sum of the outputs of each token's experts.

    Tokens with `live` -1 give zero; an expert of -1 contributes nothing. On R sorted rows,
    `gate_up` returns [R, inner] with the activation applied and `down` [R, hidden].
    """
    tokens, count = experts.shape
    if live is not None:
        experts = jnp.where(live[:, None] < 0, -1, experts)
    # Expert -1 is sorted after the last expert.
    chosen = jnp.where(experts < 0, num_experts, experts).reshape(-1)  # [T * count]
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=num_experts).astype(jnp.int32)
    owners = order // count
    made = down(gate_up(x[owners], sizes, owners), sizes, owners)
    # Back to token order by a gather: the summation order of a scatter is undefined.
    made = made[jnp.argsort(order)].reshape(tokens, count, -1)
    weighted = made * jnp.broadcast_to(weights[..., None], made.shape)
    return jnp.sum(jnp.where((experts < 0)[..., None], 0.0, weighted), axis=1)


def group_of_rows(sizes: Int[Array, " groups"], rows: int) -> Int[Array, " rows"]:
    """Group index per row, for rows sorted by group; padding rows get the last group."""
    return jnp.repeat(jnp.arange(sizes.shape[0]), sizes, total_repeat_length=rows)


def known_groups(sizes: Int[Array, " groups"], rows: int) -> Int[Array, " rows"]:
    """`group_of_rows`, with -1 for padding rows."""
    return jnp.where(jnp.arange(rows) < jnp.sum(sizes), group_of_rows(sizes, rows), -1)


def grouped_project(
    x: Float[Array, "rows inputs"],
    weight: Float[Array, "groups inputs outputs"],
    sizes: Int[Array, " groups"],
) -> Float32[Array, "rows outputs"]:
    """Grouped matmul: rows sorted by group, each times its group's matrix; `sizes` are rows per
    group."""
    ragged = partial(lax.ragged_dot, preferred_element_type=jnp.float32)
    # On the CPU ragged_dot multiplies every row by every matrix, and copies the matrices first.
    return lax.platform_dependent(
        x.astype(weight.dtype), weight, sizes, cpu=matmul_by_tiles, default=ragged
    )


def matmul_by_tiles(
    x: Float[Array, "rows inputs"],
    weight: Float[Array, "groups inputs outputs"],
    sizes: Int[Array, " groups"],
) -> Float32[Array, "rows outputs"]:
    """`grouped_project` on CPUs, in tiles of rows of one group; groups without rows cost nothing.

    A group's last tile may spill into the next group's rows, which are written later and overwrite
    it.
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

    # A fixed trip count makes it differentiable. The matmul is inside a cond because XLA hoists a
    # conversion of all matrices out of a loop, but not out of a cond.
    most = min(groups, rows) + rows // TILE
    out = jnp.zeros((rows + TILE, weight.shape[2]), jnp.float32)
    return lax.fori_loop(0, most, maybe_tile, out)[:rows]
