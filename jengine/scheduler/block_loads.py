"""Loads KV blocks that waiting requests lack from host-memory slots to the device.

In: waiting requests. Out: whether each may start, and the copies of a plan. Loaded blocks are
published at once, so later steps hit them. Must not know what is saved, or when plans are
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.hashing import group_of
from jengine.kvcache.host_slots import HostSlots
from jengine.request import FINISHED, LOADING, Request
from jengine.scheduler.block_copies import Copy, Loading
from jengine.scheduler.block_pins import BlockPins
from jengine.scheduler.copy_costs import CopyCosts
from jengine.scheduler.external_blocks import ExternalBlocks
from jengine.scheduler.external_hits import ExternalHits
from jengine.scheduler.slot_fetches import SlotFetches

# How often a request is asked for that had nothing outside when it was last looked up.
ASK_AGAIN = 32
# Failed fetches of one request after which it recomputes what is missing.
MOST_TRIES = 2


class BlocksOf(NamedTuple):
    """Parking key of a request that waits until its blocks are loaded."""

    request_id: str


class TurnToLoad(NamedTuple):
    """Parking key of requests that wait because the limit of concurrent loads is reached."""


class BlockLoads:
    """State of the requests whose cached blocks are loaded from the host or a connector."""

    def __init__(
        self,
        cache: CacheCoordinator,
        hosts: Sequence[HostSlots],
        external: ExternalBlocks,
        fetches: SlotFetches,
        pins: BlockPins,
        most_loads: int,
        costs: CopyCosts,
    ) -> None:
        """`most_loads`: maximum blocks loaded per plan."""
        self.loaded = 0  # blocks
        self.hits = ExternalHits()
        self._costs = costs
        self._cache, self._hosts = cache, hosts
        self._external, self._fetches, self._pins = external, fetches, pins
        self._most_loads = most_loads
        self._loading: dict[str, Loading] = {}
        # Request and its preemptions -> questions until it is looked up again.
        self._not_before: dict[tuple[str, int], int] = {}
        self._tries: dict[str, int] = {}  # request -> fetches that have failed
        self._copies: list[Copy] = []  # of the plan in the making
        self._wake: Callable[[Hashable], None] = lambda key: None
        self._most_requests = 0

    @property
    def num_loading(self) -> int:
        return len(self._loading)

    def use(self, wake: Callable[[Hashable], None], rows: int) -> None:
        """Set the callback that wakes requests, and the number of rows. Called once, before any
        request."""
        self._wake, self._most_requests = wake, rows

    def awaited(self, request: Request) -> Hashable | None:
        """Gate: the key to wait for, or None once every block that can be loaded is."""
        key = BlocksOf(request.request_id)
        loading = self._loading.get(request.request_id)
        if loading is None:
            found = self._looked_up(request)
            if found is not None and len(self._loading) >= self._most_requests:
                return TurnToLoad()
            loading = self._begun(found)
        while loading is not None:
            if any(self._fetches.is_coming(one) for one in loading.keys):
                return key
            if not loading.is_placed and not self._place(loading):
                loading = self._retried(loading)
                continue
            self._issue(loading)
            if loading.left:
                return key
            self._end(loading)
            self.hits.loaded(request, loading.tokens)
            return None
        return None

    def fetched(self) -> None:
        """Some fetches from the connector completed."""
        for name in self._loading:
            self._wake(BlocksOf(name))

    def take(self) -> list[Copy]:
        """Return the loads of the plan being built; their slots are pinned."""
        for loading in list(self._loading.values()):
            if loading.request.status is FINISHED:
                self._end(loading)
            else:  # also while it waits behind others: its blocks do not stay pinned for them
                self._issue(loading)
                if loading.is_placed and not loading.left:
                    self._wake(BlocksOf(loading.request.request_id))
        copies, self._copies = self._copies, []
        self.loaded += len(copies)
        return copies

    def end_all(self) -> None:
        """Cancel all loads."""
        for loading in list(self._loading.values()):
            self._end(loading)

    def ask_anew(self) -> None:
        """Invalidate negative lookups, so that requests are looked up again."""
        self._not_before.clear()

    def reset(self) -> None:
        """Cancel all loads, also those of the plan being built."""
        self._pins.unpin([], [(copy.group, copy.slot) for copy in self._copies])
        self._copies.clear()
        self._tries.clear()

    def _looked_up(self, request: Request) -> Loading | None:
        """Look up which missing blocks can be loaded. None: none."""
        name, asked = request.request_id, (request.request_id, request.num_preemptions)
        if self._not_before.get(asked, 0) > 0:
            self._not_before[asked] -= 1
            return None
        source = self._external.source(request)
        if self._tries.get(name, 0) >= MOST_TRIES:
            source = None
        known = partial(self._is_external, source=source)
        hit, here = self._cache.find_prefix(request, known), self._cache.find_prefix(request)
        self.hits.looked_up(request, here)
        if hit <= here:
            if not request.num_preemptions:  # else others may take its blocks at any step
                self._ask_later(asked)
            return None
        loading = Loading(request, [], source or "", hit - here)
        for keys, group in zip(
            self._cache.read_by_hit(request, hit), self._cache.groups, strict=True
        ):
            loading.keys += [key for key in keys if group.pool.find(key) is None]
        if request.num_preemptions and not self._costs.copies(loading.keys, loading.tokens):
            self._ask_later(asked)
            return None
        return loading

    def _begun(self, loading: Loading | None) -> Loading | None:
        """Start the fetches of a load. Returns None if there is nothing to load or no free slot."""
        if loading is None:
            return None
        request = loading.request
        self._loading[request.request_id] = loading
        request.status = LOADING
        if not self._fetch(loading):
            self._end(loading)
            return None
        return loading

    def _ask_later(self, asked: tuple[str, int]) -> None:
        if len(self._not_before) > 4096:
            self._not_before.clear()  # of requests that have ended
        self._not_before[asked] = ASK_AGAIN

    def _is_external(self, key: bytes, source: str | None) -> bool:
        if self._hosts[group_of(key)].find(key) is not None:
            return True
        return self._external.holds(key, source)

    def _fetch(self, loading: Loading) -> bool:
        """Start fetches of the contents that no slot holds. False: not all of them have room."""
        for key in loading.keys:
            group = group_of(key)
            host = self._hosts[group]
            slot = host.find(key)
            if slot is None:
                slot = host.take(key)
                if slot is None:
                    return False
                self._fetches.begin(key, slot, loading.source)
            host.touch(key)
            host.pin(slot)
            loading.slots.append((group, slot))
        return True

    def _place(self, loading: Loading) -> bool:
        """Allocate device blocks for the fetched contents. Returns False if one was evicted or no
        block is free."""
        request, groups = loading.request, self._cache.groups
        places = [self._hosts[group_of(key)].find(key) for key in loading.keys]
        if None in places:
            return False
        hit = self._cache.find_prefix(request, set(loading.keys).__contains__)
        here = [
            [block for key in keys if (block := group.pool.find(key)) is not None]
            for keys, group in zip(self._cache.read_by_hit(request, hit), groups, strict=True)
        ]
        lacking = [0] * len(groups)
        for key in loading.keys:
            lacking[group_of(key)] += 1
        for found, count, group in zip(here, lacking, groups, strict=True):
            unowned = sum(group.pool.owners(block) == 0 for block in found)
            if unowned + count > group.num_free:
                return False
        for index, (found, group) in enumerate(zip(here, groups, strict=True)):
            for block in found:  # so that they are not taken for those that come
                group.pool.pin(block)
                loading.held.append((index, block))
        targets = [
            iter(group.pool.pin_new(count)) for count, group in zip(lacking, groups, strict=True)
        ]
        for key, slot in zip(loading.keys, places, strict=True):
            index = group_of(key)
            assert slot is not None
            block = next(targets[index])
            loading.held.append((index, block))
            loading.left.append(Copy(index, block, slot, key))
        loading.is_placed = True
        return True

    def _issue(self, loading: Loading) -> None:
        """Add as many loads to the plan being built as it may have; later steps may read the
        blocks."""
        while loading.left and len(self._copies) < self._most_loads:
            copy = loading.left.popleft()
            self._copies.append(copy)
            self._hosts[copy.group].pin(copy.slot)
            self._cache.groups[copy.group].pool.publish(copy.block, copy.key)
        self._cache.listeners.explain(loading.request)
        if not loading.left:
            self._pins.release(loading.held)
            loading.held = []

    def _retried(self, loading: Loading) -> Loading | None:
        """Continue after a wake-up: looks up again if the awaited content is gone."""
        name, lost = loading.request.request_id, self._is_lost(loading)
        self._end(loading)
        if not lost:
            return None
        self._tries[name] = self._tries.get(name, 0) + 1
        return self._begun(self._looked_up(loading.request))

    def _is_lost(self, loading: Loading) -> bool:
        return any(self._hosts[group_of(key)].find(key) is None for key in loading.keys)

    def _end(self, loading: Loading) -> None:
        """Loading is complete. Blocks stay pinned until the plan being built is committed, since it
        may copy them."""
        del self._loading[loading.request.request_id]
        self._wake(BlocksOf(loading.request.request_id))
        self._wake(TurnToLoad())
        if loading.request.status is LOADING:
            loading.request.status = loading.was
        self._pins.unpin([], loading.slots)
        self._pins.release(loading.held)
