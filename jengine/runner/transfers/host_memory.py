"""Slots in the host's memory for the blocks of one cache group, as its devices hold them.

In: arrays with blocks first. Out: such arrays on the devices, or the bytes of one block whatever
devices share it. Each process keeps the shards of its own devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from jengine.runner.transfers.device_blocks import BlockPrograms, padded_count

# Which part of a block a device has: from and to along each dimension.
Part = tuple[tuple[int, int], ...]
PINNED = "pinned_host"  # the memory kind that devices copy to and from the fastest


class HostMemory:
    """The slots of one group. Memory is taken as slots are first written."""

    def __init__(self, programs: BlockPrograms, slots: int) -> None:
        self._programs = programs
        self.num_slots = slots
        self._parts: list[dict[Part, np.ndarray]] = []
        for shape, dtype, sharding in zip(
            programs.shapes, programs.dtypes, programs.shardings, strict=True
        ):
            places = sharding.addressable_devices_indices_map((1, *shape)).values()
            found = {part_of(place, shape) for place in places if place is not None}
            self._parts.append(
                {part: np.empty((slots, *(b - a for a, b in part)), dtype) for part in found}
            )

    def keep(self, slots: Sequence[int], arrays: Sequence[Array]) -> None:
        """Write the first of these blocks to slots, once they are there."""
        for parts, array, shape in zip(self._parts, arrays, self._programs.shapes, strict=True):
            written = set()
            for shard in array.addressable_shards:
                part = part_of(shard.index, shape)
                if part not in written:
                    parts[part][list(slots)] = np.asarray(shard.data)[: len(slots)]
                    written.add(part)

    def staged(self, slots: Sequence[int]) -> tuple[Array, ...]:
        """What slots hold, on its way to the devices, padded to a number of blocks that there is a
        program for."""
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

    def whole(self, slot: int) -> bytes:
        """The bytes of a block, which are the same whatever devices share it."""
        found = []
        for parts, shape, dtype in zip(
            self._parts, self._programs.shapes, self._programs.dtypes, strict=True
        ):
            block = np.empty(shape, dtype)
            for part, memory in parts.items():
                block[tuple(slice(*ends) for ends in part)] = memory[slot]
            found.append(block.tobytes())
        return b"".join(found)

    def put(self, slot: int, data: bytes | memoryview) -> bool:
        """Write the bytes of a block to a slot; False: they are of no such block."""
        if len(data) != self._programs.block_bytes:
            return False
        begin = 0
        for parts, shape, dtype in zip(
            self._parts, self._programs.shapes, self._programs.dtypes, strict=True
        ):
            count = int(np.prod(shape))
            block = np.frombuffer(data, dtype, count, begin).reshape(shape)
            begin += count * dtype.itemsize
            for part, memory in parts.items():
                memory[slot] = block[tuple(slice(*ends) for ends in part)]
        return True


def part_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Part:
    """The part of a block that a shard with blocks first has."""
    return tuple(one.indices(size)[:2] for one, size in zip(index[1:], shape, strict=True))


def on_device(values: np.ndarray, device: jax.Device) -> Array:
    """A copy on a device; to a GPU through memory that its copy engine reads by itself."""
    if device.platform == "cpu":
        return jax.device_put(values, device)
    pinned = jax.sharding.SingleDeviceSharding(device, memory_kind=PINNED)
    return jax.device_put(jax.device_put(values, pinned), device)


def on_host(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """The arrays on their way to the host's memory, where they are not there already."""
    if next(iter(arrays[0].devices())).platform == "cpu":
        return arrays
    return tuple(jax.device_put(array, array.sharding.with_memory_kind(PINNED)) for array in arrays)
