"""StepState: everything the device keeps between steps, donated to each step and returned by it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.config import CacheConfig, CacheGroup
from jengine.sampling import RowState, empty_row_state
from pallas_kernels.cache_write import empty_cache
from pallas_kernels.layout import cache_shape, entries_shape
from sharding.placement import Placement

# Logical axes of a cache array; its last dimension holds the kv heads one after the other.
CACHE_AXES = ("stage", None, None, None, "kv_heads")
ENTRIES_AXES = ("stage", None, None, None)  # of latent attention, whose heads share everything
HELD_AXES = ("stage", None, None)


class StepState(NamedTuple):
    """The KV cache, one array per group, and per row its length, last token and tables."""

    caches: tuple[Array, ...]
    last_token: Array  # i32[rows] the token sampled last, which is the row's next input
    lengths: Array  # i32[rows] tokens in the cache: where the last token will stand
    rows: RowState  # the sampler's
    # i32[groups, rows, pages] block tables. None: they are packed with each plan, in a pipeline.
    tables: Array | None
    # f32[stages, tokens, hidden] activations between stages. None: there is one stage.
    held: Array | None = None
    # i32[rows, drafts] guesses at the tokens after each row's last one, -1: none. None: steps make
    # no guesses.
    guesses: Array | None = None


class Held(NamedTuple):
    """The shape of the activations that pipeline stages hold between steps."""

    stages: int
    tokens: int
    hidden: int


def group_shape(
    group: CacheGroup, num_blocks: int, block_size: int, dtype: Any, stages: int = 1
) -> tuple[int, ...]:
    """Shape of a group's cache array, whose layers are those of one stage."""
    spec, layers = group.spec, stages * len(group.layers)
    if spec.kind == "latent":
        return entries_shape(layers, num_blocks, block_size, spec.head_dim)
    return cache_shape(layers, num_blocks, block_size, spec.kv_heads, spec.head_dim, dtype)


def block_bytes(group: CacheGroup, block_size: int, dtype: Any) -> int:
    """Bytes that one block of a group takes over all its layers (of one stage)."""
    return math.prod(group_shape(group, 1, block_size, dtype)) * np.dtype(jnp.dtype(dtype)).itemsize


def empty_state(
    cache: CacheConfig, cache_dtype: Any, max_rows: int, vocab_size: int, max_model_len: int,
    held: Held | None = None, max_adjusted: int | None = None, kernels: str | None = None,
    guesses: int = 0,
) -> StepState:  # fmt: skip
    """An empty state. Its `jax.eval_shape` gives the sizes of a state without memory.

    The cache's layers are those of one stage; without `held` there is only one. `max_adjusted`:
    rows of the sampler's pool; None: `max_rows`. `kernels`: the implementation that makes the
    caches of a lone device. `guesses`: tokens that steps guess for a row.
    """
    stages = 1 if held is None else held.stages
    pages = -(-max_model_len // cache.block_size)
    return StepState(
        caches=tuple(
            empty_cache(
                group_shape(group, blocks, cache.block_size, cache_dtype, stages),
                cache_dtype,
                kernels,
            )
            for group, blocks in zip(cache.groups, cache.num_blocks, strict=True)
        ),
        last_token=jnp.zeros(max_rows, jnp.int32),
        lengths=jnp.zeros(max_rows, jnp.int32),
        rows=empty_row_state(max_adjusted or max_rows, vocab_size, max_model_len),
        tables=jnp.zeros((len(cache.groups), max_rows, pages), jnp.int32) if held is None else None,
        held=None if held is None else jnp.zeros(held, jnp.float32),
        guesses=jnp.full((max_rows, guesses), -1, jnp.int32) if guesses else None,
    )


def placed_state(state: StepState, placement: Placement) -> StepState:
    """The shapes of a state with shardings: caches by kv head, the sampler's rows by token id, and
    stages' arrays by stage."""

    def placed(x: Any, axes: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement.sharding(axes, x.shape))

    whole = jax.tree.map(lambda x: placed(x, (None,) * x.ndim), state)
    by_token = {
        name: placed(getattr(state.rows, name), (None, "vocab")) for name in ("marks", "bias")
    }
    return whole._replace(
        caches=tuple(
            placed(cache, CACHE_AXES if cache.ndim == len(CACHE_AXES) else ENTRIES_AXES)
            for cache in state.caches
        ),
        rows=whole.rows._replace(**by_token),
        held=None if state.held is None else placed(state.held, HELD_AXES),
    )


def state_bytes(state: Any) -> int:
    """Bytes that a placed state takes on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(state)
    )
