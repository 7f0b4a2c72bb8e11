"""StepState: everything the device keeps between steps, donated to each step and returned by it.

It has each row's length, last token and block tables; plans bring new blocks and, for prefill
chunks, positions. So a decode's packed input does not grow with its context, and a step may advance
a row by a number of tokens that only the device knows. New blocks that do not fit the packed input
(a long prefix hit) are written by a small program before the step
(`runner/programs/block_tables.py`). Pipelines are the exception: when a stage runs a plan, later
plans may have advanced its rows, so tables and positions are packed with the plan.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jengine.config import CacheConfig, CacheGroup
from jengine.runner.step.group_arrays import empty_group, group_axes
from jengine.sampling import RowState, empty_row_state
from sharding.placement import Placement

HELD_AXES = ("stage", None, None)


class Held(NamedTuple):
    """Activations in flight between pipeline stages, [stages, tokens, ...]; inside a stage without
    the first axis."""

    x: Array  # f32[..., hidden]
    # i32[..., 3] frame, row and column for mrope. None: the model has no mrope.
    mrope_positions: Array | None
    # i32[...] number of later tokens of its image that a token attends to. None: causal.
    ahead: Array | None


class StepState(NamedTuple):
    """The cache, and per row its length, last token and tables."""

    # An array per group; for recurrent groups, a tuple of arrays.
    caches: tuple[Any, ...]
    last_token: Array  # i32[rows] the token sampled last, the row's next input
    lengths: Array  # i32[rows] tokens in the cache, the position of the last token
    rows: RowState  # the sampler's
    # i32[groups, rows, pages] block tables. None: packed with each plan, in a pipeline.
    tables: Array | None
    # Activations in flight between stages. None: no pipeline.
    held: Held | None = None
    # i32[rows, drafts] drafts after each row's last token, -1: none. None: no drafter on the
    # device.
    next_drafts: Array | None = None
    # i32[rows] offset of the rotary positions of tokens after a row's images. None: no mrope.
    offsets: Array | None = None
    # f32[rows, hidden] sum of each row's hidden states so far, for pooling. None: not needed.
    sums: Array | None = None
    # f32[tokens, hidden] hidden states of the last forward's prompt tokens, for scoring and pooling
    # programs; in a pipeline [stages, tokens, hidden], zeros except the last. None: not needed.
    prompts: Array | None = None


class HeldShape(NamedTuple):
    """Shape of the activations in flight between pipeline stages."""

    stages: int
    tokens: int
    hidden: int
    ahead: bool  # whether tokens of images attend to later ones

    def empty(self, *, offsets: bool) -> Held:
        """Zeros. `offsets`: whether the model has mrope."""
        tokens = self.stages, self.tokens
        return Held(
            x=jnp.zeros((*tokens, self.hidden), jnp.float32),
            mrope_positions=jnp.zeros((*tokens, 3), jnp.int32) if offsets else None,
            ahead=jnp.zeros(tokens, jnp.int32) if self.ahead else None,
        )


def empty_state(
    cache: CacheConfig, cache_dtype: Any, max_rows: int, vocab_size: int, max_model_len: int,
    held: HeldShape | None = None, max_adjusted: int | None = None, kernels: str | None = None,
    next_drafts: int = 0, masked_drafts: int = 0, offsets: bool = False, summed: int = 0,
    prompts: tuple[int, int] | None = None,
) -> StepState:  # fmt: skip
    """An empty state. Its `jax.eval_shape` gives the sizes of a state without memory.

    The cache's layers are those of one stage; without `held` there is only one. `max_adjusted`:
    rows of the sampler's pool; None: `max_rows`. `kernels`: implementation that allocates caches,
    on one device. `next_drafts`: drafts per row of the device's drafter. `masked_drafts`: drafts
    per row after which a token mask may apply. `offsets`: whether the model has mrope. `summed`:
    width of summed hidden states, 0 for none. `prompts`: shape of the prompts' hidden states; None:
    no program reads them.
    """
    stages = 1 if held is None else held.stages
    split = () if held is None else (stages,)
    pages = -(-max_model_len // cache.block_size)
    return StepState(
        caches=tuple(
            empty_group(group, blocks, cache.block_size, cache_dtype, stages, kernels)
            for group, blocks in zip(cache.groups, cache.num_blocks, strict=True)
        ),
        last_token=jnp.zeros(max_rows, jnp.int32),
        lengths=jnp.zeros(max_rows, jnp.int32),
        rows=empty_row_state(max_adjusted or max_rows, vocab_size, max_model_len, masked_drafts),
        tables=jnp.zeros((len(cache.groups), max_rows, pages), jnp.int32) if held is None else None,
        held=None if held is None else held.empty(offsets=offsets),
        next_drafts=jnp.full((max_rows, next_drafts), -1, jnp.int32) if next_drafts else None,
        offsets=jnp.zeros(max_rows, jnp.int32) if offsets else None,
        sums=jnp.zeros((max_rows, summed), jnp.float32) if summed else None,
        prompts=None if prompts is None else jnp.zeros((*split, *prompts), jnp.float32),
    )


def placed_state(
    state: StepState, placement: Placement, groups: tuple[CacheGroup, ...]
) -> StepState:
    """Add shardings to an abstract state: caches by their groups' axes, pipeline arrays by
    stage."""

    def placed(x: Any, axes: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement.sharding(axes, x.shape))

    whole = jax.tree.map(lambda x: placed(x, (None,) * x.ndim), state)
    return whole._replace(
        caches=tuple(
            jax.tree.map(placed, cache, group_axes(group))
            for cache, group in zip(state.caches, groups, strict=True)
        ),
        held=jax.tree.map(lambda x: placed(x, HELD_AXES[: x.ndim]), state.held),
        prompts=whole.prompts
        if state.held is None or state.prompts is None
        else placed(state.prompts, HELD_AXES),
    )


def state_bytes(state: Any) -> int:
    """Bytes per device of a placed state."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(state)
    )
