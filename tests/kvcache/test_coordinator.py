"""The coordinator: prefix hits, capacity, windows, versions."""

from __future__ import annotations

import pytest

from jengine.errors import ConfigError
from tests.kvcache.cache_cases import FULL, admit, decode, make_cache, make_request, sliding


def test_a_second_request_hits_the_first_ones_blocks():
    cache = make_cache()
    first, second = make_request(list(range(10)), "a"), make_request(list(range(10)), "b")
    assert admit(cache, first) == 0
    assert admit(cache, second) == 8
    assert cache.table(first, 0)[:2] == cache.table(second, 0)[:2]
    assert cache.table(first, 0)[2] != cache.table(second, 0)[2]
    cache.check()


def test_the_last_token_is_never_taken_from_the_cache():
    cache = make_cache()
    admit(cache, make_request(list(range(8)), "a"))
    assert cache.find_prefix(make_request(list(range(8)), "b")) == 4
    assert cache.find_prefix(make_request(list(range(9)), "c")) == 8


def test_new_blocks_are_the_whole_table_at_first_and_the_rest_later():
    cache = make_cache()
    admit(cache, make_request(list(range(8)), "a"))
    request = make_request(list(range(9)), "b")
    request.row = 3
    (blocks,) = cache.allocate(request, 1, 8)
    assert (blocks.row, blocks.group, blocks.first, len(blocks.blocks)) == (3, 0, 0, 3)
    request.num_computed = 9
    assert cache.allocate(request, 3) == []
    (blocks,) = cache.allocate(request, 4)
    assert (blocks.first, len(blocks.blocks)) == (3, 1)
    assert request.capacity == 16


def test_decoded_blocks_are_found_by_the_next_turn():
    cache = make_cache()
    request = make_request([0, 1, 2], "a")
    admit(cache, request)
    for token in range(3, 9):
        assert decode(cache, request, token)
    cache.free(request)
    assert cache.find_prefix(make_request([*range(9), 50], "b")) == 8


def test_only_known_tokens_are_published():
    cache = make_cache()
    request = make_request([0, 1, 2], "a")
    admit(cache, request)
    cache.allocate(request, 5)
    request.num_computed += 5  # in flight: their tokens are not back
    cache.publish(request, request.num_computed)
    assert cache.find_prefix(make_request([0, 1, 2, 3, 4], "b")) == 0
    request.token_ids.extend([3, 4])
    cache.publish(request, request.num_computed)
    assert cache.find_prefix(make_request([0, 1, 2, 3, 4], "b")) == 4


def test_requests_that_skip_reading_still_write():
    cache = make_cache()
    admit(cache, make_request(list(range(8)), "a"))
    scorer = make_request([*range(8), 9, 9, 9, 9], "b", skip_reading_prefix_cache=True)
    assert admit(cache, scorer) == 0
    assert (cache.stats.queries, cache.stats.hits) == (8, 0)
    cache.free(scorer)
    assert cache.find_prefix(make_request([*range(8), 9, 9, 9, 9, 9], "c")) == 12


def test_salts_do_not_share():
    cache = make_cache(blocks=40)
    tokens = list(range(9))
    for number, salt in enumerate([None, "a", "b"]):
        assert admit(cache, make_request(tokens, f"first {number}", cache_salt=salt)) == 0
        assert admit(cache, make_request(tokens, f"again {number}", cache_salt=salt)) == 8


def test_least_recently_used_contents_go_first_and_tails_before_heads():
    cache = make_cache(blocks=7)
    for name in "ab":
        request = make_request([ord(name)] * 12, name)
        admit(cache, request)
        cache.free(request)
    assert admit(cache, make_request([1] * 4, "c")) == 0
    assert cache.find_prefix(make_request([ord("a")] * 13, "d")) == 8  # its tail went
    assert cache.find_prefix(make_request([ord("b")] * 13, "e")) == 12


def test_a_failed_allocation_changes_nothing():
    cache = make_cache(blocks=5)
    first = make_request(list(range(8)), "a")
    admit(cache, first)
    cache.free(first)
    before = cache.groups[0].pool.num_cached
    second = make_request([*range(8), *range(50, 70)], "b")
    assert admit(cache, second) is None
    assert cache.groups[0].pool.num_cached == before
    assert cache.table(second, 0) == [] and second.capacity == 0
    cache.check()


def test_evictable_hit_blocks_are_not_counted_as_room():
    cache = make_cache(blocks=5)  # 4 usable
    first = make_request(list(range(8)), "a")
    admit(cache, first)
    cache.free(first)
    other = make_request([99] * 4, "b")
    admit(cache, other)
    # 3 unowned, of which 2 are the hit: 2 more blocks do not fit, though 3 >= 2.
    assert admit(cache, make_request([*range(8), *range(50, 58)], "c")) is None
    assert admit(cache, make_request([*range(8), *range(50, 54)], "d")) == 8
    cache.check()


def test_all_groups_must_have_room_before_any_gives():
    cache = make_cache(FULL, FULL, blocks=(10, 3))
    assert admit(cache, make_request(list(range(12)), "a")) is None
    assert [group.pool.num_used for group in cache.groups] == [0, 0]
    assert admit(cache, make_request(list(range(8)), "a")) == 0


def test_window_blocks_leave_once_their_readers_are_committed():
    cache = make_cache(sliding(4), blocks=4)  # 3 usable
    request = make_request(list(range(8)))
    admit(cache, request)
    assert cache.allocate(request, 1) is not None  # takes the last block
    request.num_computed = 12
    assert cache.allocate(request, 1) is None, "steps in flight still read the first block"
    request.num_processed = 7
    (blocks,) = cache.allocate(request, 1)
    assert cache.table(request, 0)[0] == 0
    assert blocks.first == 3
    cache.check()


def test_a_window_block_that_others_hold_makes_no_room():
    cache = make_cache(sliding(4), blocks=4)  # 3 usable
    first, second = make_request(list(range(8)), "a"), make_request([*range(4), 9, 9], "b")
    admit(cache, first)
    admit(cache, second)  # shares the first block, takes the last
    first.num_processed = 8
    assert cache.allocate(first, 1) is None
    assert 0 not in cache.table(first, 0)
    cache.check()


def test_a_hybrid_hit_satisfies_every_group():
    cache = make_cache(FULL, sliding(5), blocks=40)
    first = make_request(list(range(20)), "a")
    admit(cache, first)
    cache.free(first)
    assert cache.find_prefix(make_request([*range(20), 1], "b")) == 20
    window_pool, hashes = cache.groups[1], first.block_hashes
    window_pool.forget(hashes[4])
    assert cache.find_prefix(make_request([*range(20), 1], "c")) == 16
    window_pool.forget(hashes[0])
    assert cache.find_prefix(make_request([*range(20), 1], "d")) == 16
    cache.groups[0].forget(hashes[2])
    assert cache.find_prefix(make_request([*range(20), 1], "e")) == 8


def test_a_hit_beyond_the_window_has_null_blocks():
    cache = make_cache(FULL, sliding(5), blocks=40)
    admit(cache, make_request(list(range(20)), "a"))
    second = make_request([*range(16), 77], "b")
    assert admit(cache, second) == 16
    assert cache.table(second, 1)[:3] == [0, 0, 0] and 0 not in cache.table(second, 1)[3:]
    assert 0 not in cache.table(second, 0)
    cache.free(second)
    cache.check()


def test_new_weights_do_not_find_old_blocks_and_old_requests_stop_publishing():
    cache = make_cache(blocks=40)
    across = make_request([0, 1, 2], "a")
    admit(cache, make_request(list(range(50, 59)), "b"))
    admit(cache, across)
    cache.set_weights_version(1)
    for token in range(3, 9):
        decode(cache, across, token)
    assert cache.find_prefix(make_request(list(range(50, 59)), "c")) == 0
    for version in (1, 0):
        cache.set_weights_version(version)
        assert cache.find_prefix(make_request(list(range(9)), f"d{version}")) == 0
    assert cache.find_prefix(make_request(list(range(50, 59)), "e")) == 8
    cache.check()


def test_a_request_that_starts_again_publishes_under_the_new_version():
    cache = make_cache(blocks=40)
    request = make_request(list(range(9)), "a")
    admit(cache, request)
    cache.free(request)
    request.num_computed = 0
    cache.set_weights_version(1)
    assert admit(cache, request) == 0
    assert cache.find_prefix(make_request(list(range(9)), "b")) == 8


def test_distrusted_contents_are_not_found_in_any_request():
    cache = make_cache(FULL, sliding(3), blocks=40)
    bad, sharer = make_request(list(range(9)), "a"), make_request(list(range(9)), "b")
    admit(cache, bad)
    admit(cache, sharer)
    for token in range(9, 30):
        decode(cache, bad, token)
    cache.distrust(bad)
    cache.free(bad)
    assert cache.find_prefix(make_request(list(range(30)), "c")) == 0
    cache.check()


def test_reset_fails_while_blocks_are_in_use():
    cache = make_cache()
    request = make_request(list(range(9)), "a")
    admit(cache, request)
    assert not cache.reset_prefix_cache()
    assert cache.find_prefix(make_request(list(range(9)), "b")) == 8
    cache.free(request)
    assert cache.reset_prefix_cache()
    assert cache.find_prefix(make_request(list(range(9)), "b")) == 0
    cache.check()


def test_without_prefix_caching_nothing_is_found():
    cache = make_cache(enable_prefix_caching=False)
    admit(cache, make_request(list(range(9)), "a"))
    assert admit(cache, make_request(list(range(9)), "b")) == 0
    assert cache.groups[0].pool.num_cached == 0


def test_hits_are_counted_in_tokens_and_preempted_requests_apart():
    cache = make_cache()
    for name in "ab":
        request = make_request(list(range(9)), name)
        admit(cache, request)
    cache.free(request)
    request.num_computed, request.num_preemptions = 0, 1
    admit(cache, request)
    stats = cache.stats
    assert (stats.queries, stats.hits) == (18, 8)
    assert (stats.preempted_queries, stats.preempted_hits) == (9, 8)


def test_usage_is_that_of_the_fullest_group():
    cache = make_cache(FULL, FULL, blocks=(11, 5))
    admit(cache, make_request(list(range(8))))
    assert cache.usage == 0.5


def test_numbers_of_blocks_must_match_the_groups():
    with pytest.raises(ConfigError, match="num_blocks"):
        make_cache(FULL, FULL, blocks=(3,))


def test_pinned_blocks_are_not_reused_before_their_step_has_ended():
    cache = make_cache(FULL, sliding(5), blocks=4)  # 3 usable
    first, second = make_request(list(range(8)), "a"), make_request([9] * 8, "b")
    admit(cache, first)
    held = cache.table(first, 0)
    cache.free(first, after_step=7)
    assert admit(cache, second) is None and cache.usage > 0
    assert not cache.reset_prefix_cache()
    cache.step_ended(6)
    assert admit(cache, second) is None
    cache.check()
    again = make_request([*range(8), 9], "a")  # the same id, while the old blocks are pinned
    assert admit(cache, again) == 8
    assert cache.table(again, 0)[:2] == held
    cache.free(again)
    cache.step_ended(7)
    assert admit(cache, second) == 0
    cache.check()


def test_what_was_refused_is_looked_up_again_only_when_that_may_help():
    cache = make_cache(blocks=6)  # 5 usable
    other, waits = make_request([50] * 8, "other"), make_request([*range(16), 1], "waits")

    def refused() -> bool:
        hit = cache.find_prefix(waits)
        return cache.allocate(waits, waits.num_known - hit, hit) is None

    assert not cache.still_lacks_room(waits), "it was never tried"
    admit(cache, other)
    assert refused() and cache.still_lacks_room(waits)
    assert not cache.still_lacks_room(other)
    cache.free(other)
    assert not cache.still_lacks_room(waits), "there is room"
    admit(cache, make_request([60] * 8, "next"))
    assert cache.still_lacks_room(waits)
    admit(cache, make_request(list(range(8)), "same beginning"))
    assert not cache.still_lacks_room(waits), "its first blocks are cached now"
    assert refused() and cache.still_lacks_room(waits)
    waits.token_ids.append(7)
    assert not cache.still_lacks_room(waits)
    assert refused() and cache.still_lacks_room(waits)
    cache.set_weights_version(1)
    assert not cache.still_lacks_room(waits)
