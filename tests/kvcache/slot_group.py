"""A kind of cache group for tests, in the manner of recurrent layers: one slot and snapshots.

The slot holds the state after the last token. Each time a request's tokens end at a multiple of
EVERY blocks, the state is kept in a snapshot, which others find by content. Chunks end there.
"""

from __future__ import annotations

from collections import Counter

from jengine.config import CacheSpec
from jengine.kvcache.block_pool import BlockPool
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.group_cache import IsExternal, NewUnits, Reach, never_external
from jengine.kvcache.hashing import group_suffix
from jengine.kvcache.residency import BlockResidency

EVERY = 2
NEVER = 2**62


class Slot:
    """What one holder has."""

    def __init__(self, slot: int, restored: int | None) -> None:
        self.slot = slot
        self.restored = restored  # the snapshot of its prefix hit
        self.snapshots: dict[int, int] = {}  # blocks of text -> snapshot
        self.published: set[int] = set()

    @property
    def units(self) -> list[int]:
        hit = [] if self.restored is None else [self.restored]
        return [self.slot, *hit, *self.snapshots.values()]


class SlotGroup:
    """One slot per request, whatever its length."""

    def __init__(self, index: int, spec: CacheSpec, block_size: int, num_units: int) -> None:
        self.pool = BlockPool(num_units)
        self.held: dict[int, Slot] = {}
        self._block_size = block_size
        self._suffix = group_suffix(index)

    @property
    def num_free(self) -> int:
        return self.pool.num_unowned

    @property
    def num_used(self) -> int:
        return self.pool.num_used

    @property
    def num_units(self) -> int:
        return self.pool.total

    @property
    def holds_back(self) -> bool:
        return False

    @staticmethod
    def units_needed(spec: CacheSpec, num_tokens: int, block_size: int, max_chunk: int) -> int:
        return 2 + num_tokens // (EVERY * block_size)

    def longest_hit(
        self, contents: list[bytes], most: int, is_external: IsExternal = never_external
    ) -> int:
        for blocks in range(most // EVERY * EVERY, 0, -EVERY):
            key = contents[blocks - 1] + self._suffix
            if self.pool.find(key) is not None or is_external(key):
                return blocks
        return 0

    def read_by_hit(self, contents: list[bytes]) -> list[bytes]:
        return [content + self._suffix for content in contents[-1:]]

    def writer(self, contents: list[bytes], most: int) -> int | None:
        return None

    def chunk_end(self, start: int, end: int) -> int:
        every = EVERY * self._block_size
        return min(end, (start // every + 1) * every)

    def drafts_end(self, start: int, end: int) -> int:
        return end

    def _keeps(self, reach: Reach) -> bool:
        kept = self.held[reach.holder].snapshots if reach.holder in self.held else {}
        blocks, rest = divmod(reach.end, self._block_size)
        return not rest and not blocks % EVERY and blocks not in kept

    def demand(self, reach: Reach) -> int:
        wanted = int(self._keeps(reach))
        if reach.holder in self.held:
            return wanted
        if reach.hit:
            wanted += self.pool.owners(self._snapshot(reach.hit)) == 0
        return wanted + 1

    def reserve(self, reach: Reach) -> NewUnits | None:
        held = self.held.get(reach.holder)
        first = len(held.units) if held else 0
        if held is None:
            restored = self._snapshot(reach.hit) if reach.hit else None
            self.pool.touch([] if restored is None else [restored])
            held = self.held[reach.holder] = Slot(self.pool.allocate(1)[0], restored)
        if self._keeps(reach):
            held.snapshots[reach.end // self._block_size] = self.pool.allocate(1)[0]
        new = held.units[first:]
        return NewUnits(first, new) if new else None

    def capacity(self, holder: int) -> int:
        return NEVER

    def publish(self, holder: int, contents: list[bytes], count: int) -> None:
        held = self.held[holder]
        for blocks, snapshot in held.snapshots.items():
            if blocks <= count and blocks not in held.published:
                self.pool.publish(snapshot, contents[blocks - 1] + self._suffix)
                held.published.add(blocks)

    def has_partial_block(self, contents: list[bytes], partial: bytes) -> bool:
        return False

    def publish_partial_block(self, holder: int, contents: list[bytes], partial: bytes) -> None:
        pass

    def forget_partial_block(self, partial: bytes) -> None:
        pass

    def step_ended(self) -> None:
        pass

    def free(self, holder: int) -> None:
        self.pool.free(reversed(self.held.pop(holder).units))

    def forget(self, content: bytes) -> None:
        self.pool.forget(content + self._suffix)

    def forget_all(self) -> None:
        self.pool.forget_all()

    def record(self, journal: ContentJournal) -> None:
        self.pool.journal = journal

    def measure(self, residency: BlockResidency) -> None:
        self.pool.residency = residency

    def table(self, holder: int) -> list[int]:
        return self.held[holder].units

    def check(self) -> None:
        self.pool.check()
        owners = Counter(unit for held in self.held.values() for unit in held.units)
        for unit in range(1, self.pool.total + 1):
            assert self.pool.owners(unit) == owners[unit]

    def _snapshot(self, hit: list[bytes]) -> int:
        found = self.pool.find(hit[-1] + self._suffix)
        assert found is not None
        return found
