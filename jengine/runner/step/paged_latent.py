"""Latent attention (MLA) through the paged KV cache.

Decodes attend to cached latent entries with absorbed queries. The tokens of a prefill chunk attend
to each other with expanded keys and values, and to the prefix before the chunk as decodes do; both
results are merged. With a Triton kernel, or where devices divide a chunk's tokens among them,
prefill chunks use absorbed queries throughout.

Heads are sharded over all devices, each of which holds the whole cache, or with decode context
parallelism a part of each block. Blocks are managed as those of any paged group.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec

from jengine.layers.latent import LatentInputs
from jengine.runner.step.block_share import BlockShare, scattered_dimension
from jengine.runner.step.context_parallel import TOKENS
from jengine.runner.step.group_arrays import Axes, attention_axes
from jengine.runner.step.views import Counters, GroupView
from jengine.runner.variants.buckets import Bucket, StepShapes
from pallas_kernels.latent_attention import chunk_attention, latent_attention
from pallas_kernels.layout import held_dtype, write_entries
from sharding.context import merged, of_all_tokens
from sharding.placement import Placement

# Logical axes of queries, keys, values and results, sharded by head.
HEADS_AXES = (TOKENS, "heads", None)
# Of queries under decode context parallelism: replicated over the devices that divide a block.
READ_AXES = (TOKENS, "heads_of_block", None)
EVERYWHERE = PartitionSpec()


def latent_mixer(
    cache: Array, layer: int, inputs: LatentInputs, view: GroupView, bucket: Bucket,
    shapes: StepShapes, placement: Placement, counters: Counters,
) -> tuple[Array, Array]:  # fmt: skip
    """Store a layer's entries, then attend to the cache: [T, heads, value], and the cache."""
    q, entries = inputs.rotated()
    q = placement.held(q, HEADS_AXES)
    axes = attention_axes(inputs.config.cache)
    share = BlockShare.of(axes, shapes, placement)
    cache = _write(cache, layer, entries, view, axes, share, placement)
    reader = _Reader(cache, layer, inputs, shapes.attention, axes, share, placement, counters)
    rows, positions = bucket.decode_rows, view.positions
    tables, starts = view.tables, view.table_starts
    if not bucket.prefill_tokens or shapes.attention == "triton" or placement.ways(TOKENS) > 1:
        return inputs.values(reader.entries(q, tables, starts, positions, rows)[0]), cache
    decoded = reader.entries(q[:rows], tables[:rows], starts[:rows], positions[:rows], rows)
    new = q[rows:], tables[rows:], starts[rows:], positions[rows:]
    firsts = view.chunk_starts
    prefilled = reader.chunks(q[rows:], entries[rows:], positions[rows:], firsts)
    begins = jnp.take(positions[rows:], firsts, mode="fill", fill_value=0)
    merged = reader.after_prefixes(prefilled, *new, begins)
    merged = jnp.where(positions[rows:, None, None] >= 0, merged, 0.0)
    return jnp.concatenate([inputs.values(decoded[0]), merged]), cache


def merge(one: tuple[Array, Array], other: tuple[Array, Array]) -> Array:
    """Merge attention outputs over two sets of keys by log-sum-exp, [T, heads, value]."""
    total = jnp.logaddexp(one[1], other[1])
    first, second = (
        part * jnp.broadcast_to(jnp.exp(lse - total)[..., None], part.shape)
        for part, lse in (one, other)
    )
    return first + second


class _Reader:
    """Latent attention of one layer; heads are sharded over devices."""

    def __init__(
        self, cache: Array, layer: int, inputs: LatentInputs, implementation: str | None,
        axes: Axes, share: BlockShare, placement: Placement, counters: Counters,
    ) -> None:  # fmt: skip
        self.cache, self.layer, self.inputs = cache, layer, inputs
        self.config, self.implementation = inputs.config, implementation
        self.axes, self.share, self.placement = axes, share, placement
        self.counters = counters

    def entries(
        self, q: Array, tables: Array, starts: Array, positions: Array, rows: int
    ) -> tuple[Array, Array]:
        """Absorbed attention to the cache: latent outputs [T, heads, rank] and log-sum-exps [T,
        heads]. The first `rows` tokens of a device have a block table each, the rest one per
        tile."""
        absorbed = self.inputs.absorbed(q, held_dtype(self.cache))
        return self._absorbed(absorbed, tables, starts, positions, positions + 1, rows)

    def after_prefixes(
        self, chunks: tuple[Array, Array], q: Array, tables: Array, starts: Array,
        positions: Array, ends: Array,
    ) -> Array:  # fmt: skip
        """Merge the attention of prefill chunks with attention to the cached prefix before each
        chunk, which begins at `ends`. Skips the matmuls if no chunk has a prefix."""
        held, is_needed = held_dtype(self.cache), jnp.any(ends > 0)
        # The cache is no operand of a lax.cond: XLA would copy it.
        shape = (*q.shape[:2], self.config.kv_rank + self.config.rope_dim)
        absorbed = lax.cond(
            is_needed, lambda: self.inputs.absorbed(q, held), lambda: jnp.zeros(shape, held)
        )
        mixed, lse = self._absorbed(absorbed, tables, starts, positions, ends, 0, jnp.float32)
        return lax.cond(
            is_needed,
            lambda: merge(chunks, (self.inputs.values(mixed), lse)),
            lambda: chunks[0],
        )

    def _absorbed(
        self, absorbed: Array, tables: Array, starts: Array, positions: Array, ends: Array,
        rows: int, dtype: Any = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        held, config = held_dtype(self.cache), self.config
        window = config.window
        begins = jnp.zeros_like(positions)
        if window is not None:
            begins = jnp.maximum(positions - window + 1, 0)

        # The dtype of the next matmul, which avoids a conversion.
        dtype = held if dtype is None else dtype
        read_axes = HEADS_AXES if self.share.is_whole else READ_AXES
        scattered = scattered_dimension(absorbed.shape, HEADS_AXES, read_axes, self.placement)

        def own_heads(
            q: Array, cache: Array, tables: Array, starts: Array, begins: Array, ends: Array,
            counted: list[Array],
        ) -> tuple[Array, Array, list[Array]]:  # fmt: skip
            counts = ends if self.share.is_whole else self.share.counts(ends)

            def read(part: slice) -> tuple[Array, Array]:
                nonlocal counted
                found = latent_attention(
                    q[part], cache, self.layer, tables[part], starts[part], begins[part],
                    counts[part], rank=config.kv_rank, scale=config.scale,
                    dtype=dtype if self.share.is_whole else jnp.float32,
                    implementation=self.implementation,
                    counters=counted[0] if counted else None,
                )  # fmt: skip
                counted = list(found[2:])
                return found[0], found[1]

            parts = [part for part in (slice(rows), slice(rows, None)) if tables[part].size]
            mixed, lse = map(jnp.concatenate, zip(*map(read, parts), strict=True))
            if self.share.is_whole:
                return mixed, lse, counted
            mixed, lse = merged(mixed, lse, counts > 0, None, scattered)
            return mixed.astype(dtype), lse, counted

        spec = self.placement.spec
        heads, read_heads = (spec(axes, absorbed.shape) for axes in (HEADS_AXES, read_axes))
        of_tiles, of_tokens = spec((TOKENS,), starts.shape), spec((TOKENS,), positions.shape)
        given = (
            read_heads, spec(self.axes, self.cache.shape), PartitionSpec(*of_tiles, None), of_tiles,
            of_tokens, of_tokens, EVERYWHERE,
        )  # fmt: skip
        results, counters = (heads, PartitionSpec(*heads[:2]), EVERYWHERE), self.counters
        run = self.placement.on_each_device(own_heads, given, results)
        absorbed, count = self.placement.held(absorbed, read_axes), config.num_heads
        mixed, lse, counters[count] = run(
            absorbed, self.cache, tables, starts, begins, ends, counters.get(count, [])
        )
        return mixed, lse

    def chunks(
        self, q: Array, entries: Array, positions: Array, firsts: Array
    ) -> tuple[Array, Array]:
        """Expanded attention of prefill tokens within their own chunk: outputs [T, heads, value]
        and log-sum-exps."""
        config, held = self.config, held_dtype(self.cache)

        def own_heads(*given: Array) -> tuple[Array, Array]:
            return chunk_attention(*given, scale=config.scale, window=config.window)

        # Rounded to the cache's dtype, as later tokens read them. Padding may hold NaN.
        entries = jnp.where(positions[:, None] >= 0, entries.astype(held), 0)
        keys, values = self.inputs.expanded(entries, held)
        arrays = [self.placement.held(x, HEADS_AXES) for x in (q.astype(held), keys, values)]
        heads = self.placement.spec(HEADS_AXES, values.shape)
        run = self.placement.on_each_device(
            own_heads, (*[heads] * 3, EVERYWHERE), (heads, PartitionSpec(*heads[:2]))
        )
        return run(*arrays, firsts)


def _write(
    cache: Array, layer: int, entries: Array, view: GroupView, axes: Axes, share: BlockShare,
    placement: Placement,
) -> Array:  # fmt: skip
    """Write entries to the cache on every device that stores their slot; heads share them."""

    is_sharded = placement.ways(TOKENS) > 1

    def own_copy(cache: Array, entries: Array, slots: Array) -> Array:
        if is_sharded:
            entries = of_all_tokens(entries.astype(held_dtype(cache)))
        return write_entries(cache, layer, entries, share.slots(slots))

    spec = placement.spec(axes, cache.shape)
    tokens = placement.spec((TOKENS, None), entries.shape)
    run = placement.on_each_device(own_copy, (spec, tokens, EVERYWHERE), spec)
    return run(cache, placement.held(entries, (TOKENS, None)), view.slots)
