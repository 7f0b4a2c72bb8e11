"""Device memory reports of a process."""

from __future__ import annotations

import math
from collections.abc import Iterable

import jax

from jengine.runner.loaded_model import LoadedModel
from jengine.runner.report_types import CACHE, DeviceMemory
from sharding.placement import HOST


def device_memory(loaded: LoadedModel) -> DeviceMemory:
    """Bytes of the model's arrays, and the device's own memory statistics."""
    state = None if CACHE in loaded.asleep.tags else loaded.state
    devices = loaded.placement.mesh.local_devices
    stats = devices[0].memory_stats() or {}
    return DeviceMemory(
        platform=devices[0].platform,
        devices=len(devices),
        weights=on_one_device(leaf for leaf in loaded.leaves if leaf.sharding.memory_kind != HOST),
        cache=on_one_device(state.caches) if state else 0,
        row_state=on_one_device(jax.tree.leaves(state._replace(caches=()))) if state else 0,
        in_use=stats.get("bytes_in_use"),
        limit=stats.get("bytes_limit"),
    )


def on_one_device(arrays: Iterable[jax.Array]) -> int:
    """Bytes per device of these arrays."""
    return sum(
        math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for array in arrays
    )
