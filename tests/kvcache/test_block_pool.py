"""The pool: order of reuse, owners, findable contents."""

from __future__ import annotations

import itertools

import pytest

from jengine.errors import ConfigError
from jengine.kvcache.block_outbox import BlockOutbox
from jengine.kvcache.block_pool import RUN, BlockPool
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.host_slots import HostSlots


def key(n: int) -> bytes:
    return n.to_bytes(4, "little")


def test_null_block_is_never_given_out():
    pool = BlockPool(5)
    assert pool.allocate(4) == [1, 2, 3, 4]
    assert (pool.total, pool.num_used, pool.num_free, pool.num_cached) == (4, 4, 0, 0)
    pool.check()


def test_a_pool_without_a_usable_block_is_refused():
    with pytest.raises(ConfigError, match="num_blocks=1"):
        BlockPool(1)


def test_blocks_without_content_are_reused_first_and_contents_by_age():
    pool = BlockPool(7)
    blocks = pool.allocate(6)
    for block in blocks[:4]:
        pool.publish(block, key(block))
    pool.free(reversed(blocks))  # 5 and 6 have no content
    assert pool.num_cached == 4
    # Tail before head: 4 was freed before 1, so it is the older content.
    assert [pool.allocate(3), *(pool.allocate(1) for _ in range(3))] == [[5, 6, 4], [3], [2], [1]]


def test_tables_that_grow_side_by_side_have_long_runs():
    pool = BlockPool(8 * RUN + 1)
    tables = [pool.allocate(2) for _ in range(4)]
    for _ in range(2 * RUN - 2):
        for table in tables:
            table += pool.allocate(1, table[-1])
        pool.check()
    for table in tables:
        assert sum(b != a + 1 for a, b in itertools.pairwise(table)) == 1
    assert pool.num_free == 0


def test_what_is_kept_for_a_table_is_handed_out_when_nothing_else_is_left():
    pool = BlockPool(2 * RUN + 1)
    first, second = pool.allocate(1)[0], pool.allocate(1)[0]
    assert (first, second) == (1, RUN + 1)
    assert pool.allocate(2) == [2, 3]
    rest = pool.allocate(2 * RUN - 4, second)
    assert rest[: RUN - 1] == list(range(second + 1, second + RUN))
    assert sorted(rest[RUN - 1 :]) == list(range(4, RUN + 1))
    pool.check()


def test_evicted_blocks_come_in_the_order_of_memory():
    """The same ones are evicted, but which comes first in a table is free."""
    pool = BlockPool(6)
    blocks = pool.allocate(5)
    for block in blocks:
        pool.publish(block, key(block))
    pool.free(reversed(blocks))
    assert pool.allocate(3) == [3, 4, 5]
    assert [pool.find(key(n)) for n in range(1, 6)] == [1, 2, None, None, None]


def test_reuse_forgets_the_old_content():
    pool = BlockPool(3)
    block = pool.allocate(1)[0]
    pool.publish(block, key(9))
    pool.free([block])
    assert pool.find(key(9)) == block
    pool.allocate(2)
    assert pool.find(key(9)) is None
    pool.check()


def test_touch_takes_a_cached_block_out_of_the_ring_and_shares_an_owned_one():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.publish(first, key(1))
    pool.free([first])
    pool.touch([first, second])
    assert (pool.owners(first), pool.owners(second), pool.num_unowned) == (1, 2, 1)
    pool.free([second])
    assert pool.num_used == 2
    pool.check()


def test_several_blocks_may_hold_one_content():
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.publish(first, key(1))
    pool.publish(second, key(1))
    pool.free([first])
    pool.allocate(2)  # the third block and `first`, whose content goes
    assert pool.find(key(1)) == second
    pool.check()


def test_forget_drops_every_copy_and_moves_unowned_ones_to_the_front():
    pool = BlockPool(5)
    blocks = pool.allocate(4)
    for block in blocks[:3]:
        pool.publish(block, key(1))
    pool.free([4, 2, 1])
    pool.forget(key(1))
    assert pool.find(key(1)) is None
    assert (pool.num_cached, pool.num_free, pool.num_used) == (0, 3, 1)
    pool.forget(key(1))
    pool.check()


def test_double_free_is_an_error():
    pool = BlockPool(3)
    block = pool.allocate(1)
    pool.free(block)
    with pytest.raises(AssertionError, match="no owner"):
        pool.free(block)


def test_another_size_keeps_what_fits_and_the_order_of_reuse() -> None:
    pool = BlockPool(9)
    pool.journal = ContentJournal()
    blocks = pool.allocate(6)
    for block in blocks:
        pool.publish(block, bytes([block]))
    pool.free([blocks[2], blocks[0], blocks[5], *blocks[3:5], blocks[1]])
    pool.journal.take()
    small = pool.resized(5)
    small.check()
    assert (small.total, small.num_cached, small.num_free) == (4, 4, 0)
    assert [small.find(bytes([block])) for block in range(1, 7)] == [1, 2, 3, 4, None, None]
    assert len(small.journal.take()) == 2, "two contents have gone"  # type: ignore[union-attr]
    assert small.allocate(2) == [1, 3], "the least recently used"
    small.free([1, 3])
    large = small.resized(20)
    large.check()
    assert (large.num_cached, large.num_free) == (2, 17)
    assert large.find(bytes([2])) == 2 and large.find(bytes([4])) == 4


def test_nobody_is_told_of_what_only_this_engine_reads() -> None:
    pool = BlockPool(4)
    pool.journal = ContentJournal()
    forgotten: list[bytes] = []
    pool.outbox = BlockOutbox(HostSlots(2), forgotten.append, saves=True)
    first, second = pool.allocate(2)
    pool.publish(first, b"a", told=False)
    pool.publish(second, b"b")
    assert pool.find(b"a") == first
    pool.free([first, second])
    pool.forget_untold(b"b")
    assert pool.find(b"b") == second
    pool.forget_untold(b"a")
    assert pool.find(b"a") is None
    pool.check()
    assert pool.journal.take() == [b"+b"]
    assert pool.outbox.take() == [(second, b"b")] and not forgotten
