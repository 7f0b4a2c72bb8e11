"""How many cache blocks there are: what was asked for, what fits, what to do if nothing does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jengine.config import CacheGroup, CacheSpec
from jengine.errors import CapacityError, ConfigError
from jengine.runner.cache_size import (
    CPU_SHARE,
    BlockDemand,
    affordable_blocks,
    available_bytes,
    available_on_each,
    blocks_for,
    overridden_blocks,
    refuse_more_than,
    wished_blocks,
)

FULL = BlockDemand(CacheGroup(CacheSpec("full", 1, 8), (0,)), 1000, most_useful=80, at_least=10)
WINDOW = BlockDemand(
    CacheGroup(CacheSpec("sliding", 1, 8, window=32), (1, 2)), 2000, most_useful=16, at_least=4
)
BOTH = [FULL, WINDOW]
LEAST = 11 * 1000 + 5 * 2000


def cost(blocks: tuple[int, ...]) -> int:
    return sum(n * demand.block_bytes for n, demand in zip(blocks, BOTH, strict=True))


def test_without_a_budget_every_row_has_room_and_there_is_a_null_block() -> None:
    assert wished_blocks(BOTH, None) == (81, 17)


@pytest.mark.parametrize("budget", [LEAST, LEAST + 1, 50_000, 112_000, 10**7])
def test_a_budget_is_spread_and_never_exceeded(budget: int) -> None:
    blocks = blocks_for(BOTH, budget)
    assert blocks[0] >= 11 and blocks[1] >= 5
    assert budget - 3000 * max(1, budget // 112_000) < cost(blocks) <= budget
    assert wished_blocks(BOTH, budget) == blocks


def test_a_budget_below_one_request_says_how_much_is_needed() -> None:
    with pytest.raises(ConfigError, match="Raise kv_cache_memory_bytes") as caught:
        blocks_for(BOTH, LEAST - 1)
    named = int(re.findall(r"to (\d+) or more", str(caught.value))[0])
    assert blocks_for(BOTH, named) == (11, 5)


def test_a_number_of_blocks_is_that_of_every_group() -> None:
    assert overridden_blocks(BOTH, 11) == (11, 11)
    with pytest.raises(ConfigError, match=r"override=10: .*needs 11 blocks.*lower max_model_len"):
        overridden_blocks(BOTH, 10)


def test_a_cache_that_was_asked_for_must_fit_the_device() -> None:
    refuse_more_than(cost((50, 20)), BOTH, (50, 20))
    with pytest.raises(CapacityError, match=r"take 0\.09 GB, but 0\.08 GB.*kv_cache_memory_bytes"):
        refuse_more_than(80_000_000, BOTH, (50_000, 20_000))


def test_what_fits_is_kept_as_wished() -> None:
    wished = wished_blocks(BOTH, None)
    assert affordable_blocks(BOTH, wished, 500, cost(wished) + 500) == wished


def test_what_does_not_fit_is_cut_to_what_does() -> None:
    wished = wished_blocks(BOTH, None)
    blocks = affordable_blocks(BOTH, wished, 500, cost(wished) + 499)
    assert blocks != wished and cost(blocks) + 500 <= cost(wished) + 499


def test_too_little_memory_names_both_sizes() -> None:
    with pytest.raises(CapacityError, match=r"0\.02 GB are available.*0\.03 GB of scratch"):
        affordable_blocks(BOTH, wished_blocks(BOTH, None), 30_000_000, 20_000_000)


class Device:
    """A device that says this about its memory."""

    def __init__(self, stats: dict[str, int] | None, platform: str = "gpu") -> None:
        self.stats = stats
        self.platform = platform

    def memory_stats(self) -> dict[str, int] | None:
        return self.stats


def test_what_is_in_use_already_is_not_available() -> None:
    device: Any = Device({"bytes_limit": 1000, "bytes_in_use": 300})
    assert available_bytes(device, 0.9) == 600


def test_a_device_that_says_nothing_shares_the_hosts_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    device: Any = Device(None)
    assert available_bytes(device, 0.9) == int(1000 * CPU_SHARE)


def test_replicas_have_what_the_fullest_device_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: Any = [Device({"bytes_limit": 1000, "bytes_in_use": used}) for used in (300, 500, 0)]
    assert available_on_each(devices, 0.9) == 400

    class Memory:
        available = 1000

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    halves: Any = [Device(None, "cpu"), Device(None, "cpu")]  # of one memory
    assert available_on_each(halves, 0.9) == int(1000 * CPU_SHARE) // 2
