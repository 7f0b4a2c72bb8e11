"""Preempted requests get their blocks back from the host's memory where that is cheaper, and tokens
that come from there are counted."""

from __future__ import annotations

import logging

import pytest

from jengine.config import CacheConfig
from jengine.counts import ProgramTotals
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.scheduler.copy_costs import CopyCosts
from jengine.scheduler.tiered_transfers import TieredTransfers
from tests.executor.scripted_transfers import ScriptedTransfers
from tests.scheduler.scheduler_loop import Loop, make_wire

KEYS = [bytes([0]) * 4 + bytes(28)]


def loop_with_host(costs: CopyCosts, *, blocks: int) -> Loop:
    def made(cache: CacheCoordinator) -> TieredTransfers:
        return TieredTransfers(cache, [64], 64, costs=costs)

    loop = Loop(blocks=blocks, block_size=4, max_num_seqs=2, transfers=made)
    executor = loop.executor
    executor.transfers = ScriptedTransfers(
        executor.cache, executor._cache.cached, executor._states, {}, lambda fetch: True
    )
    return loop


@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["copying is free", "copying takes for ever"])
def test_the_cheaper_way_is_taken_and_printed(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    costs = CopyCosts([seconds])
    loop = loop_with_host(costs, blocks=12)
    with caplog.at_level(logging.INFO, "jengine"):
        loop.add(*(make_wire([at] * 8, str(at), max_tokens=24) for at in (1, 2)))
        loop.drain()
    assert loop.scheduler.num_preemptions > 0
    assert all(len(tokens) == 24 for tokens in loop.tokens.values())
    said = [record.message for record in caplog.records if "Preempted requests" in record.message]
    if seconds:
        assert costs.num_computed > 0 and loop.transfers is not None
        assert costs.num_copied == loop.transfers.loaded == 0
        assert "computed again" in said[0]
    else:
        assert costs.num_copied > 0 and loop.transfers is not None
        assert loop.transfers.loaded > 0 and costs.num_computed == 0
        assert "swapped in" in said[0]
    assert len(said) == 1


def test_what_was_not_measured_is_copied() -> None:
    assert CopyCosts().copies(KEYS, 4) and CopyCosts([1e9]).copies(KEYS, 4)


def test_tokens_from_outside_are_counted_once() -> None:
    loop = loop_with_host(CopyCosts(), blocks=12)
    assert loop.transfers is not None
    for name, first in (("a", 1), ("b", 2), ("c", 1)):  # the second evicts the first's blocks
        loop.add(make_wire([first] * 32, name, max_tokens=2))
        loop.drain()
    hits = loop.transfers.hits
    assert hits.hits >= 20 and hits.hits % 4 == 0
    assert hits.queries == 32 + 32 + 32 - (28 - hits.hits)
    counts = loop.scheduler.counts(ProgramTotals())
    assert (counts.external_queries, counts.external_hits) == (hits.queries, hits.hits)
    assert counts.external_prompt_tokens == hits.hits <= counts.cached_prompt_tokens


def test_processes_need_not_measure_the_same() -> None:
    """They compare the configs of their caches."""
    one, other = (CacheConfig((), 16, (), load_seconds=(seconds,)) for seconds in (1e-3, 2e-3))
    assert one == other and repr(one) == repr(other)
