"""StepState: everything the device keeps between steps, donated to each step and returned by it.

It has each row's length, last token and block tables; plans bring new blocks and, for prefill
chunks, positions. So the packed input of a decode does not grow with its context, and a step may
advance a row by a number that only the device knows. New blocks beyond the room in the packed input
(a long cached prefix) are written by a small program before the step
(`runner/programs/block_tables.py`). Pipelines are the exception: a stage runs a plan when its rows
may have moved on, so tables and positions are packed with the plan.
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
    """What goes from stage to stage of the tokens of a plan: [stages, tokens, ...]; of one stage
    without the first axis."""

    x: Array  # f32[..., hidden] activations
    # i32[..., 3] frame, row and column by which a token is rotated. None: its position.
    mrope_positions: Array | None
    # i32[...] to how many later tokens of its image a token attends. None: to none.
    ahead: Array | None


class StepState(NamedTuple):
    """The cache, and per row its length, last token and tables."""

    # Per group its array; of recurrent layers, a tuple of arrays.
    caches: tuple[Any, ...]
    last_token: Array  # i32[rows] the token sampled last, which is the row's next input
    lengths: Array  # i32[rows] tokens in the cache: where the last token will stand
    rows: RowState  # the sampler's
    # i32[groups, rows, pages] block tables. None: they are packed with each plan, in a pipeline.
    tables: Array | None
    # What the stages run next. None: there is one stage.
    held: Held | None = None
    # i32[rows, drafts] drafts of the tokens after each row's last one, -1: none. None: steps make
    # no drafts.
    next_drafts: Array | None = None
    # i32[rows] what is added to positions for the rotation of tokens behind a row's images. None:
    # the model does not rotate by places in images.
    offsets: Array | None = None
    # f32[rows, hidden] sum of each row's hidden states so far. None: no row wants it.
    sums: Array | None = None
    # f32[tokens, hidden] of the prompt tokens of the last forward, which programs behind it read;
    # with stages in front, of which the last has them. None: no program does.
    prompts: Array | None = None


class HeldShape(NamedTuple):
    """The shape of what pipeline stages hold between steps."""

    stages: int
    tokens: int
    hidden: int
    ahead: bool  # whether tokens of images attend to later ones

    def empty(self, *, offsets: bool) -> Held:
        """Zeros. `offsets`: whether images shift positions."""
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
    rows of the sampler's pool; None: `max_rows`. `kernels`: the implementation that makes the
    caches of a lone device. `next_drafts`: tokens that steps draft for a row. `masked_drafts`:
    drafts of a row after which a token mask may hold. `offsets`: whether images shift positions.
    `summed`: width of hidden states that each row sums. `prompts`: the most prompt tokens of a
    forward, and the width of their hidden states; None: a step is one program.
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
    """The shapes of a state with shardings: caches of these groups by their axes, and stages'
    arrays by stage."""

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
    """Bytes that a placed state takes on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(state)
    )
