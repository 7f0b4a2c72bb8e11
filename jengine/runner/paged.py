"""Attention through the paged cache, as the function a model is given for one step.

Per group and step, slots are worked out once; per layer, keys and values are written for all rows
before any row reads, which is what makes blocks shared within one step safe.
"""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from jengine.config import CacheGroup
from jengine.layers.attention import AttentionFunction, ScoreOptions
from jengine.runner.buckets import Bucket, StepShapes
from jengine.runner.step_input import StepInput, tile_of_token
from pallas_kernels.cache_write import write_cache
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.prefill_attention import prefill_attention

Caches = tuple[Array, ...]


def token_slots(inputs: StepInput, group: int, bucket: Bucket, shapes: StepShapes) -> Array:
    """Where each token's keys and values go in the group's cache; out of range for padding."""
    tiles = tile_of_token(bucket, shapes)
    table = inputs.tables[group][tiles]  # [D + T, pages]
    offset = inputs.positions - inputs.table_starts[group][tiles]
    page = jnp.clip(offset // shapes.block_size, 0, table.shape[1] - 1)
    block = jnp.take_along_axis(table, page[:, None], axis=1)[:, 0]
    slot = block * shapes.block_size + inputs.positions % shapes.block_size
    return jnp.where(inputs.positions >= 0, slot, jnp.iinfo(jnp.int32).max)


def paged_attention(inputs: StepInput, bucket: Bucket, shapes: StepShapes) -> AttentionFunction:
    """The attention function of one step: write this layer's keys and values, then read."""
    place = {
        layer: (group_index, index)
        for group_index, group in enumerate(shapes.groups)
        for index, layer in enumerate(group.layers)
    }
    slots = [token_slots(inputs, group, bucket, shapes) for group in range(len(shapes.groups))]

    def attend(
        cache: Caches, layer: int, q: Array, k: Array, v: Array, **options: Unpack[ScoreOptions]
    ) -> tuple[Array, Caches]:
        group, index = place[layer]
        written = write_cache(cache[group], index, k, v, slots[group])
        mixed = _read(q, written, index, inputs, group, shapes.groups[group], bucket, options)
        return mixed, (*cache[:group], written, *cache[group + 1 :])

    return attend


def _read(
    q: Array, cache: Array, layer: int, inputs: StepInput, index: int, group: CacheGroup,
    bucket: Bucket, scores: ScoreOptions,
) -> Array:  # fmt: skip
    rows = bucket.decode_rows
    tables, starts = inputs.tables[index], inputs.table_starts[index]
    options = {"head_dim": group.spec.head_dim, "window": group.spec.window, **scores}
    lengths = inputs.positions[:rows] + 1
    decoded = decode_attention(
        q[:rows], cache, layer, tables[:rows], starts[:rows], lengths, **options
    )
    if not bucket.prefill_tokens:
        return decoded
    prefilled = prefill_attention(
        q[rows:], cache, layer, tables[rows:], starts[rows:], inputs.positions[rows:], **options
    )
    return jnp.concatenate([decoded, prefilled])
