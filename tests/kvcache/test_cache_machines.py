"""Random sequences of operations on the pool and on the manager, against simple models."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jengine.kvcache.block_pool import BlockPool
from tests.kvcache.cache_cases import FULL, make_cache, make_request, sliding

QUICK = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=40)
LARGE = settings(derandomize=True, deadline=None, max_examples=1500, stateful_step_count=80)


class PoolMachine(RuleBasedStateMachine):
    """Owners are a multiset of blocks; a content is findable while a block keeps it."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(8)
        self.held: list[int] = []
        self.keys: dict[int, bytes] = {}

    @rule(count=st.integers(0, 4))
    def allocate(self, count):
        if count > self.pool.num_unowned:
            return
        blocks = self.pool.allocate(count)
        assert not set(blocks) & set(self.held) and 0 not in blocks
        self.held += blocks
        for block in blocks:
            self.keys.pop(block, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data):
        block = data.draw(st.sampled_from(self.held))
        self.held.remove(block)
        self.pool.free([block])

    @rule(key=st.integers(0, 3))
    def touch(self, key):
        block = self.pool.find(bytes([key]))
        holders = [b for b, k in self.keys.items() if k == bytes([key])]
        assert (block in holders) if holders else block is None
        if block is not None:
            self.pool.touch([block])
            self.held.append(block)

    @precondition(lambda self: set(self.held) - set(self.keys))
    @rule(key=st.integers(0, 3), data=st.data())
    def publish(self, key, data):
        block = data.draw(st.sampled_from(sorted(set(self.held) - set(self.keys))))
        self.pool.publish(block, bytes([key]))
        self.keys[block] = bytes([key])

    @rule(key=st.integers(0, 3))
    def forget(self, key):
        self.pool.forget(bytes([key]))
        self.keys = {b: k for b, k in self.keys.items() if k != bytes([key])}

    @rule()
    def forget_all(self):
        self.pool.forget_all()
        self.keys = {}

    @invariant()
    def nothing_is_lost(self):
        self.pool.check()
        owners = Counter(self.held)
        assert all(self.pool.owners(block) == owners[block] for block in range(1, 8))


class CacheMachine(RuleBasedStateMachine):
    """A cached token has a mark: all tokens, weights, salt up to it. Readers must find theirs."""

    @initialize(
        groups=st.sampled_from(
            [(FULL,), (sliding(3),), (FULL, sliding(3)), (sliding(6), FULL, sliding(1))]
        ),
        blocks=st.integers(4, 12),
    )
    def start(self, groups, blocks):
        self.cache = make_cache(*groups, blocks=blocks, block_size=2)
        self.windows = [group.spec.window for group in groups]
        self.cached: list[dict[tuple[int, int], object]] = [{} for _ in groups]
        self.holders: dict[str, object] = {}
        self.marks: dict[str, list[object]] = {}
        self.count = 0

    def write(self, request, start, end):
        """The request's tokens run with the weights of now."""
        marks = self.marks[request.request_id]
        for position in range(start, end):
            before = marks[-1] if marks else request.wire.cache_salt
            marks.append(hash((before, request.token_ids[position], self.cache.weights_version)))
            for index, cached in enumerate(self.cached):
                block = self.cache.table(request, index)[position // 2]
                assert block != 0
                cached[block, position % 2] = marks[position]

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        salt=st.sampled_from([None, None, "a"]),
        skip=st.booleans(),
        chunk=st.integers(1, 9),
    )
    def admit(self, tokens, salt, skip, chunk):
        self.count += 1
        name = str(self.count)
        request = make_request(tokens, name, cache_salt=salt, skip_reading_prefix_cache=skip)
        hit = self.cache.find_prefix(request)
        assert hit % 2 == 0 and hit < len(tokens) and not (skip and hit)
        length = min(chunk, len(tokens) - hit)
        used = [group.pool.num_used for group in self.cache.groups]
        if self.cache.allocate(request, length, hit) is None:
            assert used == [group.pool.num_used for group in self.cache.groups]
            return
        marks = self.marks[name] = []
        for token in tokens[:hit]:
            before = marks[-1] if marks else salt
            marks.append(hash((before, token, self.cache.weights_version)))
        self.holders[name] = request
        self.write(request, hit, hit + length)
        request.num_computed, request.num_processed = hit + length, hit
        self.cache.publish(request, request.num_computed)

    def pick(self, data):
        return self.holders[data.draw(st.sampled_from(sorted(self.holders)))]

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), chunk=st.integers(1, 4), publish=st.booleans())
    def extend(self, data, chunk, publish):
        request = self.pick(data)
        start = request.num_computed
        if self.cache.allocate(request, chunk) is None:
            return
        while request.num_known < start + chunk:
            request.token_ids.append(request.num_known % 2)
        self.write(request, start, start + chunk)
        request.num_computed += chunk
        if publish:
            self.cache.publish(request, request.num_computed)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def commit(self, data):
        request = self.pick(data)
        request.num_processed = data.draw(st.integers(request.num_processed, request.num_computed))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), distrust=st.booleans())
    def free(self, data, distrust):
        request = self.pick(data)
        if distrust:
            self.cache.distrust(request)
        self.cache.free(request)
        del self.holders[request.request_id]

    @rule(version=st.integers(0, 2))
    def change_weights(self, version):
        self.cache.set_weights_version(version)

    @rule()
    def reset(self):
        assert self.cache.reset_prefix_cache() == (not self.holders)

    @invariant()
    def blocks_add_up(self):
        self.cache.check()

    @invariant()
    def readers_find_their_own_text(self):
        for name, request in self.holders.items():
            for index, window in enumerate(self.windows):
                table = self.cache.table(request, index)
                first = 0 if window is None else max(0, request.num_processed - window + 1)
                for position in range(first, request.num_computed):
                    found = self.cached[index][table[position // 2], position % 2]
                    assert found == self.marks[name][position]


TestPool = PoolMachine.TestCase
TestPool.settings = QUICK
TestCache = CacheMachine.TestCase
TestCache.settings = QUICK


@pytest.mark.slow
class TestPoolLarge(PoolMachine.TestCase):
    settings = LARGE


@pytest.mark.slow
class TestCacheLarge(CacheMachine.TestCase):
    settings = LARGE
