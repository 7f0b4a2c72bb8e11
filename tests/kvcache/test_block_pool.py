"""The pool: order of reuse, owners, findable contents."""

from __future__ import annotations

import pytest

from jengine.errors import ConfigError
from jengine.kvcache.block_pool import BlockPool


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
    assert pool.allocate(6) == [5, 6, 4, 3, 2, 1]


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
