"""Attention through the paged KV cache: the mixer of a step.

Slots are computed once per group and step. In each layer, keys and values of all rows are written
before any row reads, which makes blocks shared within one step safe.
"""

from __future__ import annotations

from typing import Any

from jax import Array
from jax.sharding import PartitionSpec

from jengine.config import AttentionConfig
from jengine.layers.attention import AttentionInputs, score_options
from jengine.layers.latent import LatentInputs
from jengine.models.context import Mixer, MixInputs
from jengine.runner.step.batch import Batch
from jengine.runner.step.paged_latent import latent_mixer
from jengine.runner.step.state import CACHE_AXES
from jengine.runner.step.views import GroupView, group_view
from jengine.runner.variants.buckets import Bucket, StepShapes
from pallas_kernels.cache_write import rotate_and_write
from pallas_kernels.layout import held_dtype
from pallas_kernels.mixed_attention import mixed_attention
from sharding.placement import Placement

Caches = tuple[Array, ...]
# Logical axes of the fused projection's output and of queries.
QKV_AXES = (None, "kv_heads", None, None)
QUERY_AXES = (None, "kv_heads", "queries_of_kv_head", None)
Rotation = tuple[Array, Array] | None


def paged_attention(
    batch: Batch, bucket: Bucket, shapes: StepShapes, placement: Placement
) -> Mixer:
    """The mixer of one step: write a layer's keys and values, then attend to the cache.

    Each device attends with its heads, without collectives.
    """
    place = {
        layer: (group_index, index)
        for group_index, group in enumerate(shapes.groups)
        for index, layer in enumerate(group.layers)
    }
    views = [group_view(batch, group, bucket, shapes) for group in range(len(shapes.groups))]

    def attend(caches: Caches, layer: int, inputs: MixInputs) -> tuple[Array, Caches]:
        group, index = place[layer]
        cache, view = caches[group], views[group]
        if isinstance(inputs, LatentInputs):
            mixed, cache = latent_mixer(cache, index, inputs, view, bucket, shapes, placement)
        else:
            q, cache = _write(cache, index, inputs, view.slots, shapes, placement)
            mixed = _attend(q, cache, index, inputs, view, bucket, shapes, placement)
        return mixed, (*caches[:group], cache, *caches[group + 1 :])

    return attend


def _write(
    cache: Array, layer: int, inputs: AttentionInputs, slots: Array, shapes: StepShapes,
    placement: Placement,
) -> tuple[Array, Array]:  # fmt: skip
    """Store keys and values; queries [T, kv_heads, group, dim], ready for scores, and the cache."""
    if inputs.config.qk_norm == "whole" and placement.ways("kv_heads") > 1:
        inputs = inputs.normalized()  # over all heads, which are sharded
    norms = inputs.norms
    options = {} if norms is None else {"eps": norms.eps, "weight_offset": norms.offset}
    weights = None if norms is None else (norms.q_weight, norms.k_weight)

    def own_heads(
        cache: Array, qkv: Array, slots: Array, rotation: Rotation, weights: Rotation
    ) -> tuple[Array, Array]:
        q, cache = rotate_and_write(
            cache, layer, qkv, slots, rotation=rotation, norms=weights,
            implementation=shapes.attention, **options,
        )  # fmt: skip
        return q.reshape(*qkv.shape[:2], -1, qkv.shape[-1]), cache

    # Sharded by KV head only: sharded further, q would need an all-to-all.
    qkv = placement.held(inputs.qkv, QKV_AXES)
    q_shape = (*qkv.shape[:2], qkv.shape[2] - 2, qkv.shape[3])
    cache_spec = placement.spec(CACHE_AXES, cache.shape)
    run = placement.on_each_device(
        own_heads,
        (cache_spec, placement.spec(QKV_AXES, qkv.shape), *[PartitionSpec()] * 3),
        (placement.spec(QKV_AXES, q_shape), cache_spec),
    )
    return run(cache, qkv, slots, inputs.rotation, weights)


def _attend(
    q: Array, cache: Array, layer: int, inputs: AttentionInputs, view: GroupView, bucket: Bucket,
    shapes: StepShapes, placement: Placement,
) -> Array:  # fmt: skip
    """Attend q to the cache: [T, heads, dim]."""
    config, sinks = inputs.config, inputs.sinks

    def own_heads(q: Array, cache: Array, view: GroupView, sinks: Array | None) -> Array:
        flat = q.reshape(q.shape[0], -1, config.head_dim)
        given = {**score_options(config), "sinks": None if sinks is None else sinks.reshape(-1)}
        mixed = _read(flat, cache, layer, view, config, bucket, shapes, given)
        return mixed.reshape(q.shape)

    query_spec = placement.spec(QUERY_AXES, q.shape)
    cache_spec = placement.spec(CACHE_AXES, cache.shape)
    sink_spec = PartitionSpec() if sinks is None else placement.spec(QUERY_AXES[1:3], sinks.shape)
    specs = (query_spec, cache_spec, PartitionSpec(), sink_spec)
    mixed = placement.on_each_device(own_heads, specs, query_spec)(q, cache, view, sinks)
    return mixed.reshape(mixed.shape[0], config.num_heads, config.head_dim)


def _read(
    q: Array, cache: Array, layer: int, view: GroupView, config: AttentionConfig, bucket: Bucket,
    shapes: StepShapes, scores: dict[str, Any],
) -> Array:  # fmt: skip
    return mixed_attention(
        q, cache, layer, view.tables, view.table_starts, view.positions,
        rows=bucket.decode_rows, head_dim=config.head_dim, window=config.window,
        runs=view.runs if view.runs.size else None, joined=shapes.joined_tiles,
        # The dtype of the output matmul, so that no conversion comes in between.
        dtype=held_dtype(cache), implementation=shapes.attention, **scores,
    )  # fmt: skip
