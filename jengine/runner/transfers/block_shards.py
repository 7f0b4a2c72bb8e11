"""The piece of a KV block that a process holds, and its name for external storage.

In: shapes and shardings, with blocks first. Out: index ranges, and a name that is equal for equal
pieces of a block. The name of a whole block is "", so engines of one process, and processes that
hold whole blocks, share what they store.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import prod

from jax.sharding import Sharding

from jengine.runner.transfers.device_blocks import BlockPrograms

# A box within a block: half-open index range per dimension.
Part = tuple[tuple[int, int], ...]
NAME_DIGITS = 16


def part_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Part:
    """Index ranges of a block that a device's shard covers."""
    return tuple(one.indices(size)[:2] for one, size in zip(index[1:], shape, strict=True))


def piece_of(sharding: Sharding, shape: tuple[int, ...], process: int) -> tuple[Part, ...]:
    """Index ranges of one array's block that a process holds: one box if its devices' shards fill
    it exactly, else the shards."""
    places = sharding.devices_indices_map((1, *shape))
    parts = sorted(
        {
            part_of(place, shape)
            for device, place in places.items()
            if device.process_index == process
        }
    )
    ends = zip(*parts, strict=True)
    box = tuple((min(a for a, _ in one), max(b for _, b in one)) for one in ends)
    # Parts are equal or disjoint.
    return (box,) if volume(box) == sum(map(volume, parts)) else tuple(parts)


def volume(part: Part) -> int:
    return prod(b - a for a, b in part)


def within(part: Part, box: Part) -> tuple[slice, ...] | None:
    """Index ranges of a part relative to a box; None if outside."""
    if any(a < low or b > high for (a, b), (low, high) in zip(part, box, strict=True)):
        return None
    return tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(part, box, strict=True))


def piece_name(groups: Sequence[BlockPrograms], process: int) -> str:
    """Suffix of the keys under which a process stores its shards of a block: empty if it holds
    whole blocks, else a digest of the index ranges that it holds of each group."""
    pieces = [
        (shape, piece_of(sharding, shape, process))
        for group in groups
        for shape, sharding in zip(group.shapes, group.shardings, strict=True)
    ]
    if all(boxes == (whole(shape),) for shape, boxes in pieces):
        return ""
    return "-" + sha256(repr(pieces).encode()).hexdigest()[:NAME_DIGITS]


def whole(shape: tuple[int, ...]) -> Part:
    return tuple((0, size) for size in shape)


def piece_names(groups: Sequence[BlockPrograms], processes: Sequence[int]) -> tuple[str, ...]:
    """The names of all processes' shards, in order."""
    return tuple(piece_name(groups, process) for process in processes)
