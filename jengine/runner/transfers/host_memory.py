"""Host-memory slots for the blocks of one cache group, in the devices' layout.

In: arrays with blocks first. Out: such arrays on the devices, or the bytes of this process's piece
of one block, independent of how devices share the piece. Each process keeps its devices' shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jengine.runner.transfers.block_shards import Part, part_of, piece_of, within
from jengine.runner.transfers.device_blocks import BlockPrograms, padded_count

PINNED = "pinned_host"  # memory kind for the fastest device transfers


class Box(NamedTuple):
    """A box of this process's piece of a block."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    held: list[tuple[np.ndarray, tuple[slice, ...]]]  # its shards' slots, and their index ranges


class HostMemory:
    """Slots of one group. Memory is committed when slots are first written."""

    def __init__(self, programs: BlockPrograms, slots: int) -> None:
        self._programs = programs
        self.num_slots = slots
        self._parts: list[dict[Part, np.ndarray]] = []
        self._boxes: list[Box] = []  # of all arrays, in the order of serialisation
        for shape, dtype, sharding in zip(
            programs.shapes, programs.dtypes, programs.shardings, strict=True
        ):
            places = sharding.addressable_devices_indices_map((1, *shape)).values()
            found = {part_of(place, shape) for place in places if place is not None}
            parts = {part: np.empty((slots, *(b - a for a, b in part)), dtype) for part in found}
            self._parts.append(parts)
            for box in piece_of(sharding, shape, jax.process_index()):
                inside = [(memory, within(part, box)) for part, memory in parts.items()]
                held = [(memory, place) for memory, place in inside if place is not None]
                self._boxes.append(Box(tuple(b - a for a, b in box), dtype, held))
        self.piece_bytes = sum(prod(box.shape) * box.dtype.itemsize for box in self._boxes)

    def keep(self, slots: Sequence[int], arrays: Sequence[Array]) -> None:
        """Wait for the blocks, write one to each slot, and ignore the padding after them."""
        for parts, array, shape in zip(self._parts, arrays, self._programs.shapes, strict=True):
            written = set()
            for shard in array.addressable_shards:
                part = part_of(shard.index, shape)
                if part not in written:
                    parts[part][list(slots)] = np.asarray(shard.data)[: len(slots)]
                    written.add(part)

    def staged(self, slots: Sequence[int]) -> tuple[Array, ...]:
        """Contents of slots on their way to the devices, padded to a block program's size."""
        count = padded_count(len(slots))
        chosen = list(slots)
        found = []
        for parts, shape, sharding in zip(
            self._parts, self._programs.shapes, self._programs.shardings, strict=True
        ):
            whole = (count, *shape)
            copies = {}
            for part, memory in parts.items():
                copies[part] = np.empty((count, *memory.shape[1:]), memory.dtype)
                copies[part][: len(chosen)] = memory[chosen]
            places = sharding.addressable_devices_indices_map(whole)
            arrays = [
                on_device(copies[part_of(place, shape)], device)
                for device, place in places.items()
                if place is not None
            ]
            found.append(jax.make_array_from_single_device_arrays(whole, sharding, arrays))
        return tuple(found)

    def piece(self, slot: int) -> bytes:
        """Bytes of this process's piece of a block; with a single process, the whole block."""
        found = []
        for box in self._boxes:
            values = np.empty(box.shape, box.dtype)
            for memory, place in box.held:
                values[place] = memory[slot]
            found.append(values.tobytes())
        return b"".join(found)

    def put(self, slot: int, data: bytes | memoryview) -> bool:
        """Write a piece's bytes to a slot; False if their size is wrong."""
        if len(data) != self.piece_bytes:
            return False
        begin = 0
        for box in self._boxes:
            values = np.frombuffer(data, box.dtype, prod(box.shape), begin).reshape(box.shape)
            begin += values.nbytes
            for memory, place in box.held:
                memory[slot] = values[place]
        return True


def on_device(values: np.ndarray, device: jax.Device) -> Array:
    """Copy to a device; to GPUs through pinned memory."""
    if device.platform == "cpu":
        return jax.device_put(values, device)
    return through_pinned(values, device)


def through_pinned(values: np.ndarray, device: jax.Device) -> Array:
    """Copy to pinned memory, and from there to the device's own."""
    there = jax.sharding.SingleDeviceSharding(device)
    # Not to `device`: JAX refuses that as the target of an array in its pinned memory.
    return jax.device_put(jax.device_put(values, there.with_memory_kind(PINNED)), there)


def on_host(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Start copying device arrays to host memory."""
    if next(iter(arrays[0].devices())).platform == "cpu":
        return arrays
    return tuple(jax.device_put(array, array.sharding.with_memory_kind(PINNED)) for array in arrays)
