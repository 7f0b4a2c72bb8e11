"""The blocks of one cache group: who owns how many, which are free, which contents can be found.

In: counts, block ids, content keys. Out: block ids. Must not know requests or tokens.

    owned > 0 ──free──► unowned, with key ("cached")  ── least recently used is reused first
        ▲      └──────► unowned, no key  ("free")     ── reused before any cached block
        └──allocate (drops the key) / touch (keeps it)

A pin is an owner as well: a copy to or from the host, until it has ended. Blocks that no table
owns, only pins, are "pinned" and not "used".

A table gets neighbouring blocks where it can: memory is read faster in long runs. So the free
blocks behind one that begins a run are handed to others last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jengine.errors import ConfigError
from jengine.kvcache.block_outbox import BlockOutbox
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.event_log import EventLog
from jengine.kvcache.residency import BlockResidency

NULL_BLOCK = 0
OUT_OF_RING = -1
# Blocks of a run: kept for the table that took the first of them, as long as there are others.
RUN = 32


class BlockPool:
    """Reference-counted blocks. Block 0 is the null block: never allocated, never freed."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ConfigError(
                f"num_blocks={num_blocks}: expected at least 2, as block 0 is never used. "
                "Give the cache more memory."
            )
        self.total = num_blocks - 1
        self.num_unowned = self.total
        self.num_cached = 0
        self._owners = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._blocks_of: dict[bytes, dict[int, None]] = {}
        self.journal: ContentJournal | None = None  # of keys that become findable, or cease to be
        self.residency: BlockResidency | None = None  # watches some of the blocks
        self.events: EventLog | None = None  # tells others of the same
        self.outbox: BlockOutbox | None = None  # of blocks to be copied away
        self._untold: set[bytes] = set()  # contents that cause no KV events
        self._pins: dict[int, int] = {}
        # Unowned blocks form a ring through these two lists, past two marks: where free ones end
        # and cached ones begin, and where all end.
        self._cached, self._end = num_blocks, num_blocks + 1
        self._after = [OUT_OF_RING, *range(2, num_blocks + 2), 1]
        self._before = [OUT_OF_RING, self._end, *range(1, num_blocks + 1)]

    @property
    def num_used(self) -> int:
        """Blocks in at least one block table."""
        return self.total - self.num_unowned - self.num_pinned

    @property
    def num_pinned(self) -> int:
        """Blocks held by copies alone."""
        return sum(self._owners[block] == pins for block, pins in self._pins.items())

    @property
    def num_free(self) -> int:
        """Unowned blocks without cached content."""
        return self.num_unowned - self.num_cached

    def owners(self, block: int) -> int:
        """Reference count of a block."""
        return self._owners[block]

    def allocate(self, count: int, after: int = NULL_BLOCK) -> list[int]:
        """Take `count` blocks: free ones first, if possible those that follow `after`, then those
        least recently used. Their old contents are forgotten."""
        assert count <= self.num_unowned, f"{count} blocks wanted, {self.num_unowned} unowned"
        blocks: list[int] = []
        fresh = min(count, self.num_free)
        for _ in range(fresh):
            after = after + 1 if after and self._is_free(after + 1) else self._begin_run()
            self._take(after)
            blocks.append(after)
        reused = []
        for _ in range(count - fresh):
            reused.append(block := self._after[self._cached])
            self._take(block)
            self._drop_key(block)
            if self.residency is not None:
                self.residency.evicted(block)
        blocks += sorted(reused)
        if self.residency is not None:
            self.residency.allocated(blocks)
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Increment the reference counts of blocks found by content."""
        if self.residency is not None:
            self.residency.used(blocks)
        for block in blocks:
            if self._owners[block] == 0:
                self._leave_ring(block)
            self._owners[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Decrement reference counts. Pass a table's tail first: it is then reused first."""
        for block in blocks:
            assert self._owners[block] > 0, f"block {block} is freed but has no owner"
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._enter_ring(block)

    def pin(self, block: int) -> None:
        """Keep a block and its content until `unpin`, for a planned copy."""
        self.touch((block,))
        self._pins[block] = self._pins.get(block, 0) + 1

    def pin_new(self, count: int) -> list[int]:
        """Allocate pinned blocks for contents that will be copied into them."""
        blocks = self.allocate(count)
        for block in blocks:
            self._pins[block] = 1
        return blocks

    def unpin(self, block: int) -> None:
        """The copy has completed."""
        left = self._pins.pop(block) - 1
        if left:
            self._pins[block] = left
        self.free((block,))

    def holds(self, block: int, key: bytes) -> bool:
        """Whether this block is findable by this key."""
        return self._keys[block] == key

    def find(self, key: bytes) -> int | None:
        """Return a block with this content, or None."""
        blocks = self._blocks_of.get(key)
        return next(iter(blocks)) if blocks else None

    def finds_any(self, keys: Iterable[bytes]) -> bool:
        """Whether any of these contents is cached."""
        return not self._blocks_of.keys().isdisjoint(keys)

    def publish(self, block: int, key: bytes, *, told: bool = True) -> None:
        """Make an owned block findable by content; several blocks may hold the same.

        `told=False`: journal, events and outbox are not informed.
        """
        assert self._owners[block] > 0, f"block {block} is published but has no owner"
        assert self._keys[block] is None, f"block {block} is published twice"
        self._keys[block] = key
        if not told:
            self._untold.add(key)
        elif key not in self._blocks_of:
            for log in (self.journal, self.events):
                if log is not None:
                    log.stored(key)
        self._blocks_of.setdefault(key, {})[block] = None
        if told and self.outbox is not None:
            self.outbox.published(block, key)

    def forget(self, key: bytes) -> None:
        """Make a content unfindable in every block that holds it."""
        told = key not in self._untold
        for block in list(self._blocks_of.get(key, ())):
            if self._owners[block] == 0:
                self._leave_ring(block)
                self._drop_key(block)
                self._enter_ring(block)
            else:
                self._drop_key(block)
        if told and self.outbox is not None:
            self.outbox.forgotten(key)

    def forget_untold(self, key: bytes) -> None:
        """Undo a `publish` with `told=False`."""
        if key in self._untold:
            self.forget(key)

    def is_findable(self, block: int) -> bool:
        """Whether the block has cached content."""
        return self._keys[block] is not None

    def forget_all(self) -> None:
        """Make every content unfindable."""
        for key in list(self._blocks_of):
            self.forget(key)
        if self.outbox is not None:
            self.outbox.forgotten_all()

    def resized(self, num_blocks: int) -> BlockPool:
        """Return a pool of `num_blocks` blocks with the contents of those that remain,
        all unowned."""
        assert self.num_unowned == self.total, f"{self.total - self.num_unowned} have owners"
        pool = BlockPool(num_blocks)
        pool.residency, pool.outbox, pool.events = self.residency, self.outbox, self.events
        block = self._after[self._cached]
        while block != self._end:  # the least recently used first, as they will be reused
            if block < num_blocks:
                pool._adopt(block, self._keys[block])
            block = self._after[block]
        pool.journal = self.journal
        pool._untold = self._untold & pool._blocks_of.keys()
        for key in self._blocks_of.keys() - pool._blocks_of.keys():
            self._tell_removed(key)
        return pool

    def _adopt(self, block: int, key: bytes | None) -> None:
        assert key is not None, f"block {block} is cached and has no key"
        self._leave_ring(block)
        self._keys[block] = key
        self._blocks_of.setdefault(key, {})[block] = None
        self._enter_ring(block)

    def check(self) -> None:
        """Assert what must hold between any two calls."""
        ring = self._ring()
        unowned = {b for b in range(1, self.total + 1) if self._owners[b] == 0}
        cached = {b for b in unowned if self._keys[b] is not None}
        found = [(key, b) for key, blocks in self._blocks_of.items() for b in blocks]
        assert len(ring) == len(set(ring)) and set(ring) == unowned, "ring is not the unowned set"
        assert self.num_unowned == len(unowned) and self.num_cached == len(cached), "counts drifted"
        counted = self.num_free + self.num_used + self.num_pinned + self.num_cached
        assert counted == self.total, "blocks were lost"
        assert all(0 < n <= self._owners[b] for b, n in self._pins.items()), "a pin is no owner"
        assert all(self._keys[b] == key for key, b in found), "a found block has another key"
        assert len(found) == sum(key is not None for key in self._keys), "a key is not findable"
        assert min(self._owners) == 0 == self._owners[NULL_BLOCK], "owner counts are off"

    def check_owners(self, held: Mapping[int, int]) -> None:
        """`check`, and assert that each block has as many owners as `held` counts holders."""
        self.check()
        for block in range(1, self.total + 1):
            owners = self._owners[block] - self._pins.get(block, 0)
            holders = held.get(block, 0)
            assert owners == holders, f"block {block}: {owners} owners, {holders} held"

    def _ring(self) -> list[int]:
        blocks, block = [], self._after[self._end]
        while block != self._end:
            assert self._before[self._after[block]] == block, f"ring is broken at block {block}"
            blocks.append(block)
            block = self._after[block]
        border = blocks.index(self._cached)
        assert all(self._keys[b] is None for b in blocks[:border]), "a cached block is among free"
        assert None not in (self._keys[b] for b in blocks[border + 1 :]), "a free one among cached"
        return blocks[:border] + blocks[border + 1 :]

    def _is_free(self, block: int) -> bool:
        return block <= self.total and self._owners[block] == 0 and self._keys[block] is None

    def _begin_run(self) -> int:
        """Return the next free block; the free blocks right behind it move to the end of the free
        list."""
        first = last = self._after[self._end]
        most = min(first + RUN - 1, self.total)
        while last < most and self._after[last] == last + 1:
            last += 1
        behind = self._after[last]
        if last > first and behind != self._cached:
            kept, tail = first + 1, self._before[self._cached]
            self._after[first], self._before[behind] = behind, first
            self._after[tail], self._before[kept] = kept, tail
            self._after[last], self._before[self._cached] = self._cached, last
        return first

    def _take(self, block: int) -> None:
        self._leave_ring(block)
        self._owners[block] = 1

    def _leave_ring(self, block: int) -> None:
        before, after = self._before[block], self._after[block]
        self._after[before], self._before[after] = after, before
        self._after[block] = self._before[block] = OUT_OF_RING
        self.num_unowned -= 1
        self.num_cached -= self._keys[block] is not None

    def _enter_ring(self, block: int) -> None:
        """Insert into the LRU ring: without content at the head (reused next), with content at the
        tail."""
        cached = self._keys[block] is not None
        before = self._before[self._end] if cached else self._end
        after = self._after[before]
        self._after[before] = self._before[after] = block
        self._before[block], self._after[block] = before, after
        self.num_unowned += 1
        self.num_cached += cached

    def _drop_key(self, block: int) -> None:
        """Only for blocks outside the ring, so that the cached count stays right."""
        key = self._keys[block]
        assert key is not None, f"block {block} has no key to drop"
        self._keys[block] = None
        del self._blocks_of[key][block]
        if not self._blocks_of[key]:
            del self._blocks_of[key]
            self._tell_removed(key)

    def _tell_removed(self, key: bytes) -> None:
        if key in self._untold:
            self._untold.remove(key)
            return
        for log in (self.journal, self.events):
            if log is not None:
                log.removed(key)
