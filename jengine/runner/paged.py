"""Attention through the paged KV cache: the mixer of one step.

Slots are computed once per group and step. In each layer, keys and values of all rows are written
before any row reads, which makes blocks shared within one step safe.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jengine.config import CacheSpec
from jengine.layers.attention import ScoreOptions, score_options
from jengine.models.context import Mixer, MixInputs
from jengine.runner.buckets import Bucket, StepShapes
from jengine.runner.state import CACHE_AXES
from jengine.runner.step_input import StepInput, tile_of_token
from pallas_kernels.cache_write import write_cache
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.layout import held_dtype
from pallas_kernels.prefill_attention import prefill_attention
from sharding.placement import Placement

Caches = tuple[Array, ...]
# Logical axes of the operands of attention.
PRODUCT_AXES = (None, "kv_heads", None, None)
QUERY_AXES = (None, "kv_heads", "queries_of_kv_head", None)
KEY_AXES = (None, "kv_heads", None)


class GroupView(NamedTuple):
    """A step as the layers of one cache group see it."""

    slots: Array  # i32 [D + T] where a token's keys and values go
    positions: Array  # i32 [D + T]
    tables: Array  # i32 [tiles, pages]
    table_starts: Array  # i32 [tiles]


def token_slots(inputs: StepInput, group: int, bucket: Bucket, shapes: StepShapes) -> Array:
    """Where each token's keys and values go in the group's cache; out of range for padding."""
    tiles = tile_of_token(bucket, shapes)
    table = inputs.tables[group][tiles]  # [D + T, pages]
    offset = inputs.positions - inputs.table_starts[group][tiles]
    page = jnp.clip(offset // shapes.block_size, 0, table.shape[1] - 1)
    block = jnp.take_along_axis(table, page[:, None], axis=1)[:, 0]
    slot = block * shapes.block_size + inputs.positions % shapes.block_size
    return jnp.where(inputs.positions >= 0, slot, jnp.iinfo(jnp.int32).max)


def paged_attention(
    inputs: StepInput, bucket: Bucket, shapes: StepShapes, placement: Placement
) -> Mixer:
    """The mixer of one step: write a layer's keys and values, then attend to the cache.

    Each device does so for its own heads, without collectives.
    """
    place = {
        layer: (group_index, index)
        for group_index, group in enumerate(shapes.groups)
        for index, layer in enumerate(group.layers)
    }
    views = [group_view(inputs, group, bucket, shapes) for group in range(len(shapes.groups))]

    def attend(caches: Caches, layer: int, inputs: MixInputs) -> tuple[Array, Caches]:
        group, index = place[layer]
        spec, options = shapes.groups[group].spec, score_options(inputs.config)
        q, k, v = inputs.heads()

        def own_heads(
            cache: Array, q: Array, k: Array, v: Array, view: GroupView
        ) -> tuple[Array, Array]:
            written = write_cache(cache, index, k, v, view.slots, shapes.attention)
            flat = q.reshape(q.shape[0], -1, spec.head_dim)
            mixed = _read(flat, written, index, view, spec, bucket, shapes.attention, options)
            return mixed.reshape(q.shape), written

        # Queries by the kv head they belong to, so that both are split alike.
        grouped = q.reshape(q.shape[0], spec.kv_heads, -1, spec.head_dim)
        # The matmul's output is split by KV head only: split further, q would need an all-to-all.
        grouped = placement.held(grouped, PRODUCT_AXES)
        cache_spec = placement.spec(CACHE_AXES, caches[group].shape)
        query_spec = placement.spec(QUERY_AXES, grouped.shape)
        key_spec = placement.spec(KEY_AXES, k.shape)
        run = placement.on_each_device(
            own_heads,
            (cache_spec, query_spec, key_spec, key_spec, PartitionSpec()),
            (query_spec, cache_spec),
        )
        mixed, written = run(caches[group], grouped, k, v, views[group])
        return mixed.reshape(q.shape), (*caches[:group], written, *caches[group + 1 :])

    return attend


def group_view(inputs: StepInput, group: int, bucket: Bucket, shapes: StepShapes) -> GroupView:
    """The step as the layers of this group see it."""
    return GroupView(
        token_slots(inputs, group, bucket, shapes),
        inputs.positions,
        inputs.tables[group],
        inputs.table_starts[group],
    )


def _read(
    q: Array, cache: Array, layer: int, view: GroupView, spec: CacheSpec, bucket: Bucket,
    implementation: str | None, scores: ScoreOptions,
) -> Array:  # fmt: skip
    rows = bucket.decode_rows
    tables, starts, positions = view.tables, view.table_starts, view.positions
    options = {"head_dim": spec.head_dim, "window": spec.window, **scores}
    # The dtype of the matmul that comes next, so that nothing converts in between.
    options |= {"dtype": held_dtype(cache), "implementation": implementation}
    decoded = decode_attention(
        q[:rows], cache, layer, tables[:rows], starts[:rows], positions[:rows] + 1, **options
    )
    if not bucket.prefill_tokens:
        return decoded
    prefilled = prefill_attention(
        q[rows:], cache, layer, tables[rows:], starts[rows:], positions[rows:], **options
    )
    return jnp.concatenate([decoded, prefilled])
