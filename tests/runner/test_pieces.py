"""The pieces of a block that processes store: boxes of what their devices have, and their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from jengine.runner.transfers.block_shards import piece_name, piece_names, piece_of, within

HEADS = 8


@dataclass(frozen=True)
class Device:
    id: int
    process_index: int


class Split:
    """A sharding of the heads of a block [tokens, heads] over devices of several processes."""

    def __init__(self, *processes: int, shards: int) -> None:
        """The process of each device; consecutive devices have the same shard if there are less."""
        self.devices = [Device(number, process) for number, process in enumerate(processes)]
        self.shards = shards

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        heads = shape[-1] // self.shards
        copies = len(self.devices) // self.shards
        found = {}
        for device in self.devices:
            begin = device.id // copies * heads
            found[device] = (slice(None), slice(None), slice(begin, begin + heads))
        return found


def group(split: Split) -> Any:
    @dataclass
    class Group:
        shapes = [(3, HEADS)]
        shardings = [split]

    return Group()


def test_neighbouring_parts_are_one_box() -> None:
    split: Any = Split(0, 0, 1, 1, shards=4)
    assert piece_of(split, (3, HEADS), 0) == (((0, 3), (0, 4)),)
    assert piece_of(split, (3, HEADS), 1) == (((0, 3), (4, 8)),)
    assert within(((0, 3), (6, 8)), ((0, 3), (4, 8))) == (slice(0, 3), slice(2, 4))
    assert within(((0, 3), (2, 4)), ((0, 3), (4, 8))) is None


def test_parts_that_fill_no_box_stay_apart() -> None:
    split: Any = Split(0, 1, 0, 1, shards=4)
    assert piece_of(split, (3, HEADS), 0) == (((0, 3), (0, 2)), ((0, 3), (4, 6)))


def test_names_say_what_is_stored_and_not_by_how_many_devices() -> None:
    two = piece_names([group(Split(0, 1, shards=2))], [0, 1])
    assert len(set(two)) == 2 and "" not in two
    assert piece_names([group(Split(0, 0, 1, 1, shards=4))], [0, 1]) == two
    assert piece_names([group(Split(0, 0, 1, 1, shards=2))], [0, 1]) == two
    copied = piece_names([group(Split(0, 1, 2, 3, shards=2))], [0, 1, 2, 3])
    assert copied == (two[0], two[0], two[1], two[1])
    turned = piece_names([group(Split(0, 1, 0, 1, shards=4))], [0, 1])
    assert not set(turned) & set(two)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_process_that_has_the_whole_block_shares_it_with_engines_of_one(shards: int) -> None:
    assert piece_name([group(Split(0, 0, shards=shards))], 0) == ""
    assert piece_names([group(Split(0, 1, shards=1))], [0, 1]) == ("", "")
