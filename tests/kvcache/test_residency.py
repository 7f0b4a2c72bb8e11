"""How long blocks stay in a pool, by a clock of the test."""

from __future__ import annotations

from jengine.counts import BlockTimes
from jengine.kvcache.block_pool import BlockPool
from jengine.kvcache.residency import BlockResidency


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stay_from_allocation_to_eviction() -> None:
    clock, times = Clock(), BlockTimes()
    pool = BlockPool(3)
    pool.residency = BlockResidency(1.0, times, clock)
    (block,) = pool.allocate(1)
    pool.publish(block, b"content")
    for at in (2, 5, 9, 10, 11, 15):
        clock.now = 100.0 + at
        pool.touch([block])
    assert pool.owners(block) == 7
    pool.free([block] * 7)
    clock.now = 120.0
    assert sum(times.lifetime.counts) == 0, "it has not ended"
    assert block in pool.allocate(2)
    assert (times.lifetime.total, sum(times.lifetime.counts)) == (20.0, 1)
    assert times.idle_before_evict.total == 5.0
    assert (times.reuse_gap.total, sum(times.reuse_gap.counts)) == (6.0, 3), "of the last four uses"


def test_content_that_was_forgotten_is_not_evicted() -> None:
    clock, times = Clock(), BlockTimes()
    pool = BlockPool(3)
    pool.residency = BlockResidency(1.0, times, clock)
    (block,) = pool.allocate(1)
    pool.publish(block, b"content")
    pool.free([block])
    pool.forget_all()
    clock.now += 50
    pool.free(pool.allocate(2))
    assert sum(times.lifetime.counts) == 0
    (block,) = pool.allocate(1)
    pool.publish(block, b"other")
    pool.free([block])
    clock.now += 3
    pool.allocate(2)
    assert times.lifetime.total == times.idle_before_evict.total == 3, "a stay of its own"


def test_a_share_of_the_blocks() -> None:
    times = BlockTimes()
    pool = BlockPool(1001)
    pool.residency = BlockResidency(0.1, times)
    for turn in range(4):
        blocks = pool.allocate(1000)
        for block in blocks:
            pool.publish(block, b"%d %d" % (turn, block))
        pool.free(blocks)
    assert 200 < sum(times.lifetime.counts) < 400
    assert sum(times.reuse_gap.counts) == 0
