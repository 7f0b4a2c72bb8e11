"""How many cache blocks there are: what was asked for, what fits, what to do if nothing does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jengine.config import CacheGroup, CacheSpec
from jengine.errors import CapacityError, ConfigError
from jengine.runner.memory.cache_size import (
    SIGNIFICANT_BITS,
    BlockDemand,
    blocks_for,
    cost,
    fitting_blocks,
    overridden_blocks,
    planned_blocks,
    refuse_more_than,
    rounded,
    settled_blocks,
    wished_blocks,
)

FULL = BlockDemand(CacheGroup(CacheSpec("full", 1, 8), (0,)), 1000, most_useful=80, at_least=10)
WINDOW = BlockDemand(
    CacheGroup(CacheSpec("sliding", 1, 8, window=32), (1, 2)), 2000, most_useful=16, at_least=4
)
BOTH = [FULL, WINDOW]
LEAST = 11 * 1000 + 5 * 2000
# An 8B model on 80 GB: 256 rows of 131,072 tokens would need 4.4 TB.
LARGE = [BlockDemand(CacheGroup(CacheSpec("full", 8, 128), tuple(range(32))), 2**21, 2**21, 8192)]
GB = 10**9


def test_without_a_budget_every_row_has_room_and_there_is_a_null_block() -> None:
    assert wished_blocks(BOTH) == (81, 17)


@pytest.mark.parametrize("budget", [LEAST, LEAST + 1, 50_000, 112_000, 10**7])
def test_a_budget_is_spread_and_never_exceeded(budget: int) -> None:
    blocks = blocks_for(BOTH, budget)
    assert blocks[0] >= 11 and blocks[1] >= 5
    assert budget - 3000 * max(1, budget // 112_000) < cost(BOTH, blocks) <= budget


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
    refuse_more_than(cost(BOTH, (50, 20)), BOTH, (50, 20))
    with pytest.raises(CapacityError, match=r"take 0\.09 GB, but 0\.08 GB.*kv_cache_memory_bytes"):
        refuse_more_than(80_000_000, BOTH, (50_000, 20_000))


@given(st.integers(0, 2**40))
def test_rounding_keeps_few_bits_and_loses_little(blocks: int) -> None:
    kept = rounded(blocks)
    assert blocks - blocks / 64 <= kept <= blocks
    assert len(f"{kept:b}".rstrip("0")) <= SIGNIFICANT_BITS


@given(st.integers(LEAST, 10**6))
def test_what_fits_is_within_the_budget_and_holds_one_request(budget: int) -> None:
    blocks = fitting_blocks(BOTH, budget)
    assert cost(BOTH, blocks) <= budget
    assert blocks[0] >= 11 and blocks[1] >= 5


def test_all_blocks_that_are_useful_are_taken_where_they_fit() -> None:
    wished = wished_blocks(BOTH)
    assert fitting_blocks(BOTH, cost(BOTH, wished)) == wished
    assert fitting_blocks(BOTH, cost(BOTH, wished) - 1) != wished


def test_a_large_model_is_planned_for_what_there_is_and_compiled_once() -> None:
    planned = planned_blocks(LARGE, 61 * GB, 3 * GB, None, 0.9)
    assert 56 * GB < cost(LARGE, planned) <= 58 * GB
    # The estimate was 1.5 GB above what the compiler reports: not worth compiling again.
    assert settled_blocks(LARGE, planned, 3 * GB // 2, 61 * GB, 0.9) == planned
    # It was far above: then it is.
    settled = settled_blocks(LARGE, planned, 0, 80 * GB, 0.9)
    assert cost(LARGE, planned) < 0.9 * cost(LARGE, settled) <= 80 * GB
    # It was below: the planned size does not fit.
    assert cost(LARGE, settled_blocks(LARGE, planned, 9 * GB, 61 * GB, 0.9)) <= 52 * GB


def test_an_estimate_above_what_there_is_does_not_refuse() -> None:
    planned = planned_blocks(BOTH, LEAST + 500, 10 * LEAST, None, 0.9)
    assert planned == (11, 5)
    assert settled_blocks(BOTH, planned, 400, LEAST + 500, 0.9) == planned


@pytest.mark.parametrize("free", [55.0, 55.1, 54.7, 56.5])
def test_a_size_that_was_used_before_is_used_again(free: float) -> None:
    recorded = planned_blocks(LARGE, int(55.05 * GB), 3 * GB, None, 15 / 16)
    again = planned_blocks(LARGE, int(free * GB), 3 * GB, recorded, 15 / 16)
    assert again == settled_blocks(LARGE, again, 3 * GB, int(free * GB), 15 / 16) == recorded


def test_a_recorded_size_that_no_longer_suits_is_replaced() -> None:
    recorded = planned_blocks(LARGE, 55 * GB, 3 * GB, None, 15 / 16)
    for free in (40 * GB, 75 * GB):
        fresh = planned_blocks(LARGE, free, 3 * GB, None, 15 / 16)
        chosen = planned_blocks(LARGE, free, 3 * GB, recorded, 15 / 16)
        assert settled_blocks(LARGE, chosen, 3 * GB, free, 15 / 16) == fresh != recorded
    assert planned_blocks(LARGE, 55 * GB, 3 * GB, (5,), 0) == recorded, "less than one request"
    assert planned_blocks(LARGE, 55 * GB, 3 * GB, (9000, 9000), 0) == recorded, "other groups"


def test_too_little_memory_names_both_sizes() -> None:
    planned = planned_blocks(BOTH, 20_000_000, 0, None, 0.9)
    with pytest.raises(CapacityError, match=r"0\.02 GB are available.*0\.03 GB of scratch"):
        settled_blocks(BOTH, planned, 30_000_000, 20_000_000, 0.9)
