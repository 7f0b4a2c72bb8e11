"""Prefill context parallelism: distributes a step's tokens over the devices of the axis "pcp".

In: arrays over the tokens of a step, [decode rows | prefill tokens], or over its query tiles. Out:
the same reordered by device, so that a shard is the [decode rows | prefill tokens] of a smaller
bucket. Rows and tiles are dealt round-robin, so each device has early and late tiles of a long
prompt, with few and with many keys. Without this parallelism nothing is reordered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from jengine.runner.step.views import GroupView
from jengine.runner.variants.buckets import Bucket, StepShapes
from sharding.placement import Placement

TOKENS = "tokens"  # the logical axis of reordered arrays


class ContextShards:
    """The order of one bucket's tokens."""

    def __init__(self, bucket: Bucket, shapes: StepShapes, placement: Placement) -> None:
        self.ways = placement.ways(TOKENS)
        rows, tiles = bucket.decode_rows, shapes.num_tiles(bucket)
        assert rows % self.ways == tiles % self.ways == 0, f"{bucket} over {self.ways} devices"
        # One device's bucket.
        self.bucket = replace(
            bucket,
            decode_rows=rows // self.ways,
            prefill_tokens=bucket.prefill_tokens // self.ways,
        )
        self._tile = shapes.prefill_tile
        self._placement = placement

    def of_tokens(self, array: Array) -> Array:
        """Reorder an array over tokens."""
        return self._sharded(array, self._tile)

    def of_tiles(self, array: Array) -> Array:
        """Reorder an array over query tiles: decode rows, then prefill tiles."""
        return self._sharded(array, 1)

    def of_view(self, view: GroupView) -> GroupView:
        """Reorder a view without joined tiles."""
        if self.ways == 1:
            return view
        assert not view.runs.size and not view.ends.size and view.ahead is None
        return view._replace(
            slots=self._ordered(view.slots, self._tile),  # every device writes all
            positions=self.of_tokens(view.positions),
            tables=self.of_tiles(view.tables),
            table_starts=self.of_tiles(view.table_starts),
        )

    def in_order(self, array: Array) -> Array:
        """The inverse of `of_tokens`."""
        return array if self.ways == 1 else self._in_order(array)

    def taken(self, array: Array, tokens: Array) -> Array:
        """Rows `tokens` of a reordered array."""
        if self.ways == 1:
            return array[tokens]
        places = self._in_order(np.arange(len(array), dtype=np.int32))
        return array[jnp.asarray(places)[tokens]]

    def _in_order(self, array: Any) -> Any:
        parts = array.reshape(self.ways, -1, *array.shape[1:])
        rows = self.bucket.decode_rows
        found = [in_turn(parts[:, :rows], 1), in_turn(parts[:, rows:], self._tile)]
        return (np if isinstance(array, np.ndarray) else jnp).concatenate(found)

    def _sharded(self, array: Array, tile: int) -> Array:
        if self.ways == 1:
            return array
        axes = (TOKENS, *(None,) * (array.ndim - 1))
        return self._placement.held(self._ordered(array, tile), axes)

    def _ordered(self, array: Array, tile: int) -> Array:
        # Replicated first: these arrays are small, and XLA would otherwise add collectives.
        whole = (None,) * array.ndim
        rows = self.bucket.decode_rows * self.ways
        parts = [
            dealt(self._placement.held(part, whole), self.ways, unit)
            for part, unit in ((array[:rows], 1), (array[rows:], tile))
        ]
        return jnp.concatenate(parts, axis=1).reshape(array.shape)


def dealt(array: Array, ways: int, unit: int) -> Array:
    """Deal units round-robin: [ways, per device, ...], unit i to device i % ways."""
    rest = array.shape[1:]
    units = array.reshape(array.shape[0] // (ways * unit), ways, unit, *rest)
    return units.swapaxes(0, 1).reshape(ways, array.shape[0] // ways, *rest)


def in_turn(parts: Any, unit: int) -> Any:
    """The inverse of `dealt`."""
    ways, own, *rest = parts.shape
    units = parts.reshape(ways, own // unit, unit, *rest)
    return units.swapaxes(0, 1).reshape(ways * own, *rest)


def view_spec(view: GroupView, placement: Placement) -> GroupView:
    """Partition specs of a reordered view."""

    def spec(array: Array) -> PartitionSpec:
        return placement.spec((TOKENS, *(None,) * (array.ndim - 1)), array.shape)

    return jax.tree.map(spec, view)
