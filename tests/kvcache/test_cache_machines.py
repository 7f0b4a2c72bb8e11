"""Random sequences of operations on the pool and on the coordinator, against simple models."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jengine.config import CacheGroup, CacheSpec
from jengine.kvcache.block_pool import BlockPool
from jengine.kvcache.kinds import KINDS
from tests.kvcache.cache_cases import FULL, chunked, make_cache, make_request, sliding
from tests.kvcache.slot_group import SlotGroup

RECURRENT = CacheGroup(CacheSpec("recurrent", 1, 8), (2,))
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
    """A cached token has a mark: all tokens, weights, salt up to it. Readers must find theirs.

    Of a recurrent group a slot or a snapshot has the mark of the last token that it has seen.
    """

    @initialize(
        groups=st.sampled_from(
            [
                (FULL,),
                (sliding(3),),
                (FULL, sliding(3)),
                (sliding(6), FULL, sliding(1)),
                (FULL, chunked(6)),
                (RECURRENT,),
                (FULL, RECURRENT, sliding(3)),
            ]
        ),
        blocks=st.integers(4, 12),
    )
    def start(self, groups, blocks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(KINDS, "recurrent", SlotGroup)
            self.cache = make_cache(*groups, blocks=blocks, block_size=2)
        self.specs = [group.spec for group in groups]
        self.step = 0
        # Blocks of requests that have ended, with their marks, by the step they wait for.
        self.pinned: list[tuple[int, dict[tuple[int, int, int], object]]] = []
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
                if self.specs[index].kind == "recurrent":
                    continue
                block = self.cache.table(request, index)[position // 2]
                assert block != 0
                cached[block, position % 2] = marks[position]
        for index, held in self.slots(request):
            self.cached[index][held.slot, 0] = marks[end - 1]
            if end % 2 == 0 and end // 2 in held.snapshots:
                self.cached[index][held.snapshots[end // 2], 0] = marks[end - 1]

    def slots(self, request):
        """What a request holds in recurrent groups."""
        holder = self.cache._leases.of(request).holder
        for index, group in enumerate(self.cache.groups):
            if isinstance(group, SlotGroup):
                yield index, group.held[holder]

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
        length = self.cache.chunk_end(hit, min(hit + chunk, len(tokens))) - hit
        assert length > 0
        used = [group.pool.num_used for group in self.cache.groups]
        if self.cache.allocate(request, length, hit) is None:
            assert used == [group.pool.num_used for group in self.cache.groups]
            return
        marks = self.marks[name] = []
        for token in tokens[:hit]:
            before = marks[-1] if marks else salt
            marks.append(hash((before, token, self.cache.weights_version)))
        self.holders[name] = request
        for index, held in self.slots(request):
            assert (held.restored is None) == (hit == 0)
            if hit:  # the step copies the snapshot to the slot
                assert self.cached[index][held.restored, 0] == marks[hit - 1]
                self.cached[index][held.slot, 0] = marks[hit - 1]
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
        chunk = self.cache.chunk_end(start, start + chunk) - start
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
    @rule(data=st.data(), distrust=st.booleans(), steps=st.sampled_from([None, None, 0, 1, 3]))
    def free(self, data, distrust, steps):
        request = self.pick(data)
        if distrust:
            self.cache.distrust(request)
        if steps is None:
            self.cache.free(request)
        else:
            self.pinned.append((self.step + steps, self.held_by(request)))
            self.cache.free(request, after_step=self.step + steps)
        del self.holders[request.request_id]

    def held_by(self, request):
        """The marks in everything that a request holds."""
        return {
            (index, block, place): self.cached[index][block, place]
            for index in range(len(self.cached))
            for block in self.cache.table(request, index)
            for place in (0, 1)
            if block != 0 and (block, place) in self.cached[index]
        }

    @rule()
    def end_step(self):
        self.cache.step_ended(self.step)
        self.pinned = [(last, marks) for last, marks in self.pinned if last > self.step]
        self.step += 1

    @precondition(lambda self: len(self.holders) > 1)
    @rule(tokens=st.integers(1, 3))
    def extend_together(self, tokens):
        """Where `has_room` says yes, every one of the requests gets its blocks."""
        requests = list(self.holders.values())
        ends = [
            self.cache.chunk_end(one.num_computed, one.num_computed + tokens) for one in requests
        ]
        if any(end - one.num_computed < tokens for one, end in zip(requests, ends, strict=True)):
            return
        if self.cache.has_room(requests, tokens):
            for request in requests:
                assert self.cache.allocate(request, tokens) is not None

    @rule(version=st.integers(0, 2))
    def change_weights(self, version):
        self.cache.set_weights_version(version)

    @rule()
    def reset(self):
        assert self.cache.reset_prefix_cache() == (not self.holders and not self.pinned)

    @invariant()
    def blocks_add_up(self):
        self.cache.check()

    @invariant()
    def readers_find_their_own_text(self):
        for name, request in self.holders.items():
            for index, held in self.slots(request):
                assert self.cached[index][held.slot, 0] == self.marks[name][-1]
            for index, spec in enumerate(self.specs):
                if spec.kind == "recurrent":
                    continue
                table = self.cache.table(request, index)
                first = spec.first_read(request.num_processed)
                for position in range(first, request.num_computed):
                    found = self.cached[index][table[position // 2], position % 2]
                    assert found == self.marks[name][position]

    @invariant()
    def pinned_blocks_keep_their_contents(self):
        for _, marks in self.pinned:
            for (index, block, place), mark in marks.items():
                assert self.cached[index][block, place] == mark


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
