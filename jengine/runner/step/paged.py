"""Attention through the paged KV cache: the token mixer that the model's layers call.

Cache slots are computed once per group and step. In each layer, keys and values of all rows are
written before any row reads, so blocks may be shared within one step.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from jengine.config import AttentionConfig
from jengine.layers.alibi import alibi_slopes
from jengine.layers.attention import AttentionInputs, ReadInputs, score_options
from jengine.layers.latent import LatentInputs
from jengine.layers.recurrent import RecurrentInputs, StateView
from jengine.models.context import Mixer, MixInputs
from jengine.runner.step.batch import StepBatch
from jengine.runner.step.block_share import BlockShare, scattered_dimension
from jengine.runner.step.context_parallel import TOKENS, ContextShards, view_spec
from jengine.runner.step.encoder_attention import reach_of, step_blocks, whole_view
from jengine.runner.step.group_arrays import attention_axes
from jengine.runner.step.image_attention import Later, with_later
from jengine.runner.step.paged_latent import latent_mixer
from jengine.runner.step.recurrent import HeldStates, recurrent_mixer, state_view
from jengine.runner.step.views import Counters, GroupView, group_view
from jengine.runner.variants.buckets import Bucket, StepShapes
from pallas_kernels.cache_write import (
    rotate_and_write,
    rotated_heads,
    with_finite_values,
    write_cache,
)
from pallas_kernels.layout import has_scales, held_dtype
from pallas_kernels.mixed_attention import mixed_attention
from sharding.context import merged, of_all_tokens
from sharding.placement import Placement

Caches = tuple[Any, ...]
# Logical axes of the fused projection's output and of queries.
QKV_AXES = (TOKENS, "kv_heads", None, None)
QUERY_AXES = (TOKENS, "kv_heads", "queries_of_kv_head", None)
KEY_AXES = (None, "kv_heads", None)
# Of queries under decode context parallelism: replicated over the devices that divide a block.
READ_AXES = (TOKENS, "kv_heads", "queries_of_block", None)
Rotation = tuple[Array, Array] | None
OfHeads = dict[str, Array | None]  # per-head arrays: [kv_heads, group, ...]


def paged_attention(
    batch: StepBatch,
    bucket: Bucket,
    shapes: StepShapes,
    placement: Placement,
    held: HeldStates | None = None,
) -> Mixer:
    """The mixer of one step: write a layer's keys and values, then attend to the cache.

    Each device attends with its heads and, with prefill context parallelism, its tokens, after an
    all-gather of new keys and values. `held` collects recurrent layers of steps with drafts.
    """
    shards = ContextShards(bucket, shapes, placement)
    place = {
        (layer, group.spec.is_state): (group_index, index)
        for group_index, group in enumerate(shapes.groups)
        for index, layer in enumerate(group.layers)
    }
    views: dict[int, GroupView] = {}
    state_views: dict[int, StateView] = {}
    for index, group in enumerate(shapes.groups):
        if group.spec.keeps_nothing:
            views[index] = whole_view(batch, bucket, shapes)
        elif group.spec.is_state:
            state_views[index] = state_view(batch, index, bucket, shapes, placement)
        else:
            views[index] = shards.of_view(group_view(batch, index, bucket, shapes))
    reading = shards.bucket, shapes, placement, Counters()  # a device's bucket

    def attend(caches: Caches, layer: int, inputs: MixInputs) -> tuple[Array, Caches]:
        group, index = place[layer, isinstance(inputs, RecurrentInputs)]
        cache = caches[group]
        if isinstance(inputs, RecurrentInputs):
            states = state_views[group]
            mixed, cache = recurrent_mixer(cache, index, inputs, states, placement)
            if held is not None:
                held.hold(group, index, inputs, states)
        elif isinstance(inputs, LatentInputs):
            mixed, cache = latent_mixer(cache, index, inputs, views[group], *reading)
        elif isinstance(inputs, ReadInputs):
            mixed = _attend(inputs.q, cache, index, inputs, views[group], *reading)
        elif inputs.config.bidirectional:
            blocks = step_blocks(inputs.config, shards.bucket, shapes)
            mixed, _ = _write_and_attend(blocks, 0, inputs, views[group], *reading)
        else:
            mixed, cache = _write_and_attend(cache, index, inputs, views[group], *reading)
        return mixed, (*caches[:group], cache, *caches[group + 1 :])

    return attend


def _write_and_attend(
    cache: Array, layer: int, inputs: AttentionInputs, view: GroupView, bucket: Bucket,
    shapes: StepShapes, placement: Placement, counters: Counters,
) -> tuple[Array, Array]:  # fmt: skip
    """Write keys and values, then attend. Returns the output [T, heads, dim] and the cache."""
    q, cache = _write(cache, layer, inputs, view.slots, shapes, placement)
    q = inputs.scaled(q)
    return _attend(q, cache, layer, inputs, view, bucket, shapes, placement, counters), cache


def _write(
    cache: Array, layer: int, inputs: AttentionInputs, slots: Array, shapes: StepShapes,
    placement: Placement,
) -> tuple[Array, Array]:  # fmt: skip
    """Store keys and values; queries [T, kv_heads, group, dim], ready for scores, and the cache."""
    axes = attention_axes(inputs.config.cache)
    share = BlockShare.of(axes, shapes, placement)
    if inputs.config.qk_norm == "whole" and placement.ways("kv_heads") > 1:
        inputs = inputs.normalized()  # over all heads, which are sharded
    norms = inputs.norms
    options = {} if norms is None else {"eps": norms.eps, "weight_offset": norms.offset}
    weights = None if norms is None else (norms.q_weight, norms.k_weight)
    is_sharded = placement.ways(TOKENS) > 1
    travels = jnp.float32 if has_scales(cache.dtype) else held_dtype(cache)
    finite = shapes.prompts is not None and not has_scales(cache.dtype)

    def own_heads(
        cache: Array, qkv: Array, slots: Array, rotation: Rotation, weights: Rotation
    ) -> tuple[Array, Array]:
        own = share.slots(slots)
        if is_sharded:
            qkv = with_finite_values(qkv, travels) if finite else qkv
            q, k, v = rotated_heads(qkv, rotation, weights, **options)
            k, v = (of_all_tokens(x.astype(travels)) for x in (k, v))
            cache = write_cache(cache, layer, k, v, own, implementation=shapes.attention)
        else:
            q, cache = rotate_and_write(
                cache, layer, qkv, own, rotation=rotation, norms=weights, finite=finite,
                implementation=shapes.attention, **options,
            )  # fmt: skip
        return q.reshape(*qkv.shape[:2], -1, qkv.shape[-1]), cache

    # Sharded by KV head only: sharded further, q would need an all-to-all.
    qkv = placement.held(inputs.qkv, QKV_AXES)
    q_shape = (*qkv.shape[:2], qkv.shape[2] - 2, qkv.shape[3])
    cache_spec, whole = placement.spec(axes, cache.shape), PartitionSpec()
    tokens = placement.spec((TOKENS,), qkv.shape[:1])
    run = placement.on_each_device(
        own_heads,
        (cache_spec, placement.spec(QKV_AXES, qkv.shape), whole, tokens, whole),
        (placement.spec(QKV_AXES, q_shape), cache_spec),
    )
    return run(cache, qkv, slots, inputs.rotation, weights)


def _attend(
    q: Array, cache: Array, layer: int, inputs: AttentionInputs | ReadInputs, view: GroupView,
    bucket: Bucket, shapes: StepShapes, placement: Placement, counters: Counters,
) -> Array:  # fmt: skip
    """Attend to the cache, and within images to later tokens: [T, heads, dim]."""
    config = inputs.config
    slopes = None if config.alibi is None else alibi_slopes(config)
    of_heads = {
        "sinks": inputs.sinks,
        "slopes": None if slopes is None else jnp.asarray(slopes),
        "biases": inputs.biases,
    }
    assert inputs.biases is None or not config.bidirectional, "the table is of one direction"
    axes = attention_axes(config.cache)
    share = BlockShare.of(axes, shapes, placement)
    query_axes, scattered = QUERY_AXES, None
    if not share.is_whole:
        query_axes = READ_AXES
        scattered = scattered_dimension(q.shape, QUERY_AXES, query_axes, placement)

    def own_heads(
        q: Array, cache: Array, view: GroupView, of_heads: OfHeads, later: Later | None,
        counted: list[Array],
    ) -> tuple[Array, list[Array]]:  # fmt: skip
        flat = q.reshape(q.shape[0], -1, config.head_dim)
        read = partial(_read, flat, cache, layer, counted, config, bucket, shapes)
        # The dtype of the output matmul, which avoids a conversion: the cache's, unless quantized.
        dtype = q.dtype if has_scales(cache.dtype) else held_dtype(cache)
        if share.is_whole:
            given: dict[str, Any] = {
                name: None if x is None else x.reshape(-1, *x.shape[2:])
                for name, x in of_heads.items()
            }
            mixed, lse, *counted = read(view, dtype=dtype, **given)
            if later is not None:
                mixed = with_later(flat, (mixed, lse), later, config, shapes.most_ahead)
            return mixed.reshape(q.shape), counted
        assert slopes is None and inputs.biases is None, "distances are those in whole blocks"
        own, seen = share.view(view)
        part, lse, *counted = read(own)
        part, lse = part.reshape(q.shape), lse.reshape(q.shape[:-1])
        mixed, _ = merged(part, lse, seen, of_heads["sinks"], scattered)
        return mixed.astype(dtype), counted

    query_spec, result_spec = (placement.spec(given, q.shape) for given in (query_axes, QUERY_AXES))
    cache_spec = placement.spec(axes, cache.shape)
    head_specs = {
        name: PartitionSpec() if x is None else placement.spec(query_axes[1 : 1 + x.ndim], x.shape)
        for name, x in of_heads.items()
    }
    later, later_spec = None, None
    if view.ahead is not None and config.sees_ahead:
        assert isinstance(inputs, AttentionInputs), "images are read with keys of their own layer"
        _, keys, values = inputs.heads()
        specs: list[Any] = [*[placement.spec(KEY_AXES, keys.shape)] * 2, PartitionSpec()]
        later, later_spec = Later(keys, values, view.ahead), Later(*specs)
    whole, heads = PartitionSpec(), config.num_heads
    given = (query_spec, cache_spec, view_spec(view, placement), head_specs, later_spec, whole)
    run = placement.on_each_device(own_heads, given, (result_spec, whole))
    mixed, counters[heads] = run(q, cache, view, of_heads, later, counters.get(heads, []))
    return mixed.reshape(mixed.shape[0], config.num_heads, config.head_dim)


def _read(
    q: Array, cache: Array, layer: int, counted: list[Array], config: AttentionConfig,
    bucket: Bucket, shapes: StepShapes, view: GroupView, **options: Any,
) -> Any:  # fmt: skip
    reach = reach_of(view, config, bucket, shapes)
    return mixed_attention(
        q, cache, layer, view.tables, view.table_starts, reach.positions,
        rows=bucket.decode_rows, head_dim=config.head_dim, window=reach.window, ends=reach.ends,
        runs=view.runs if view.runs.size else None, joined=shapes.joined_tiles,
        reads_together=shapes.reads_together, implementation=shapes.attention,
        prompts=shapes.prompts, return_lse=True, counters=counted[0] if counted else None,
        **score_options(config), **options,
    )  # fmt: skip
