"""Cache group of recurrent layers: states of requests, and snapshots for prefix hits.

A unit holds one state. A request's block table gives, per block, the unit of the state after that
block's tokens: a step reads the unit of the token before its first one and writes that of its last
one, usually the same unit. Where a step ends at a multiple of `snapshot_every` tokens, the next one
writes to a new unit, and the old one stays as a snapshot, found by content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jengine.config import CacheSpec
from jengine.kvcache.block_pool import NULL_BLOCK, BlockPool
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.group_cache import IsExternal, NewUnits, Reach, never_external
from jengine.kvcache.hashing import group_suffix
from jengine.kvcache.residency import BlockResidency


class Span(NamedTuple):
    """Consecutive blocks of a table that share a unit: from block `first` to the next span's."""

    first: int
    unit: int


class Unwritten(NamedTuple):
    """A snapshot that becomes findable once its step has run."""

    holder: int
    unit: int
    key: bytes
    blocks: int  # up to which it stands for a prefix


class StateTable:
    """One holder's block table."""

    __slots__ = ("ahead", "blocks", "kept", "published", "spans")

    def __init__(self, blocks: list[int], spans: list[Span], ahead: int) -> None:
        self.blocks = blocks
        self.ahead = ahead  # tokens behind the blocks that a drafter may write: no state does
        self.spans = spans
        self.kept: dict[int, int] = {}  # tokens in blocks -> unit with the state after them
        self.published = len(blocks)  # leading blocks for which a snapshot was published, or not

    def grow(self, length: int, unit: int) -> None:
        """Extend the table to `length` blocks, the new ones with `unit`."""
        if not self.spans or self.spans[-1].unit != unit:
            self.spans.append(Span(len(self.blocks), unit))
        self.blocks += [unit] * (length - len(self.blocks))

    def unread(self, settled: int, block_size: int) -> list[Span]:
        """Leading spans that no step will read again, given that tokens before `settled` are not
        recomputed."""
        read_from = max(settled - 1, 0) // block_size
        ends = [span.first for span in self.spans[1:]]
        return [span for span, end in zip(self.spans, ends, strict=False) if end <= read_from]


class RecurrentGroup:
    """Allocates one unit per running request, one more while it continues from a snapshot;
    snapshots without a holder are evicted when units are needed."""

    def __init__(self, index: int, spec: CacheSpec, block_size: int, num_units: int) -> None:
        self.pool = BlockPool(num_units)
        self._block_size = block_size
        self._every = spec.snapshot_every
        self._suffix = group_suffix(index)
        self._tables: dict[int, StateTable] = {}
        # Published snapshots that planned steps may still have to write.
        self._unwritten: list[Unwritten] = []
        # Memo of `writer` by the last block of a prefix, until that may change: many requests wait
        # for the same prefix.
        self._writers: dict[bytes, int | None] = {}

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
        return bool(self._unwritten)

    @staticmethod
    def units_needed(spec: CacheSpec, num_tokens: int, block_size: int, max_chunk: int) -> int:
        every = spec.snapshot_every
        return 1 if every is None or num_tokens <= every else 2

    def longest_hit(
        self, contents: Sequence[bytes], most: int, is_external: IsExternal = never_external
    ) -> int:
        if self._every is None:
            return 0
        step = self._every // self._block_size
        for blocks in range(most // step * step, 0, -step):
            key = contents[blocks - 1] + self._suffix
            if self.pool.find(key) is not None or is_external(key):
                return blocks
        return 0

    def read_by_hit(self, contents: Sequence[bytes]) -> list[bytes]:
        return [content + self._suffix for content in contents[-1:]]

    def writer(self, contents: Sequence[bytes], most: int) -> int | None:
        step = (self._every or self._block_size) // self._block_size
        last = most // step * step
        if not last:
            return None
        key = contents[last - 1]
        if key not in self._writers:
            self._writers[key] = self._find_writer(contents, last, step)
        return self._writers[key]

    def chunk_end(self, start: int, end: int) -> int:
        """Return the last multiple of `snapshot_every` in the chunk, if any, else `end`."""
        if self._every is None:
            return end
        last = end // self._every * self._every
        return last if last > start else end

    def drafts_end(self, start: int, end: int) -> int:
        """The next multiple of `snapshot_every`: tokens after it write to another unit."""
        if self._every is None:
            return end
        return min(end, (start // self._every + 1) * self._every)

    def demand(self, reach: Reach) -> int:
        table = self._tables.get(reach.holder)
        if table is None:
            from_snapshot = bool(reach.hit) and not reach.partial
            return 1 + (from_snapshot and self.pool.owners(self._snapshot(reach.hit)) == 0)
        if self._length(reach) <= len(table.blocks):
            return 0
        leaving = table.unread(reach.settled, self._block_size)
        fresh = int(self._leaves_snapshot(table, reach.start))
        return fresh - sum(self.pool.owners(span.unit) == 1 for span in leaving)

    def reserve(self, reach: Reach) -> NewUnits | None:
        length = self._length(reach)
        table = self._tables.get(reach.holder)
        if table is None:
            table = self._tables[reach.holder] = self._start(reach)
            source = self._find(reach.partial) if reach.partial else None
            unit = self.pool.allocate(1)[0]
            table.grow(length, unit)
            copied = None if source is None else (source, unit)
            return NewUnits(0, list(table.blocks), copied)
        first = len(table.blocks)
        if length <= first:
            return None
        self._release(table, table.unread(reach.settled, self._block_size))
        unit = table.spans[-1].unit
        if self._leaves_snapshot(table, reach.start):
            table.kept[first] = unit
            unit = self.pool.allocate(1)[0]
        table.grow(length, unit)
        return NewUnits(first, table.blocks[first:])

    def capacity(self, holder: int) -> int:
        table = self._tables[holder]
        return len(table.blocks) * self._block_size + table.ahead

    def publish(self, holder: int, contents: Sequence[bytes], count: int) -> None:
        """Publish the snapshots among the first `count` blocks. The table's last block counts as
        one: a step that continues from it writes to another unit."""
        table = self._tables[holder]
        found = {tokens: unit for tokens, unit in table.kept.items() if tokens <= count}
        if count == len(table.blocks) and self._is_due(count):
            found[count] = table.spans[-1].unit
        for blocks, unit in found.items():
            table.kept.pop(blocks, None)
            if blocks > table.published:
                key = contents[blocks - 1] + self._suffix
                self._unwritten.append(Unwritten(holder, unit, key, blocks))
                self._writers.clear()
        table.published = max(table.published, count)

    def has_partial_block(self, contents: Sequence[bytes], partial: bytes) -> bool:
        return self._find(partial) is not None

    def publish_partial_block(self, holder: int, contents: Sequence[bytes], partial: bytes) -> None:
        unit = self._tables[holder].spans[-1].unit
        # A snapshot has the same content, and is found by it at the latest when it is given back.
        is_snapshot = any(waiting.unit == unit for waiting in self._unwritten)
        if not is_snapshot and not self.pool.is_findable(unit):
            self.pool.publish(unit, partial + self._suffix, told=False)

    def forget_partial_block(self, partial: bytes) -> None:
        self.pool.forget_untold(partial + self._suffix)

    def step_ended(self) -> None:
        """Make pending snapshots findable. Not before: a step reads all states before it writes
        any."""
        self._let_find(self._unwritten)

    def free(self, holder: int) -> None:
        # What it has published is written by steps planned before.
        self._let_find([waiting for waiting in self._unwritten if waiting.holder == holder])
        table = self._tables.pop(holder)
        self.pool.free(span.unit for span in reversed(table.spans))

    def forget(self, content: bytes) -> None:
        key = content + self._suffix
        self._unwritten = [waiting for waiting in self._unwritten if waiting.key != key]
        self._writers.clear()
        self.pool.forget(key)

    def forget_all(self) -> None:
        self._unwritten.clear()
        self._writers.clear()
        self.pool.forget_all()

    def resize(self, num_units: int) -> None:
        self.pool = self.pool.resized(num_units)

    def record(self, journal: ContentJournal) -> None:
        self.pool.journal = journal

    def measure(self, residency: BlockResidency) -> None:
        self.pool.residency = residency

    def table(self, holder: int) -> list[int]:
        return list(self._tables[holder].blocks)

    def check(self) -> None:
        held = Counter(span.unit for table in self._tables.values() for span in table.spans)
        self.pool.check_owners(held)
        for table in self._tables.values():
            units = {span.unit for span in table.spans}
            assert units >= set(table.kept.values()), "a snapshot was given back"

    def _find_writer(self, contents: Sequence[bytes], last: int, step: int) -> int | None:
        coming = [
            (one.blocks, one.holder)
            for one in self._unwritten
            if one.blocks <= last and contents[one.blocks - 1] + self._suffix == one.key
        ]
        if not coming:
            return None
        blocks, holder = max(coming)
        longer = contents[blocks - 1 : last : step]
        is_there = self.pool.finds_any([content + self._suffix for content in longer])
        return None if is_there else holder

    def _let_find(self, snapshots: list[Unwritten]) -> None:
        for snapshot in snapshots:
            self.pool.publish(snapshot.unit, snapshot.key)
        self._unwritten = [one for one in self._unwritten if one not in snapshots]
        self._writers.clear()

    def _length(self, reach: Reach) -> int:
        """Blocks of the tokens that run."""
        return -(-(reach.end - reach.ahead) // self._block_size)

    def _is_due(self, blocks: int) -> bool:
        return self._every is not None and blocks * self._block_size % self._every == 0

    def _leaves_snapshot(self, table: StateTable, start: int) -> bool:
        """Whether the state before `start` is a snapshot that must not be overwritten."""
        blocks = len(table.blocks)
        return blocks * self._block_size == start and self._is_due(blocks)

    def _release(self, table: StateTable, spans: list[Span]) -> None:
        units = {span.unit for span in spans}
        # No step in flight writes them any more, so they can be found at once.
        self._let_find([waiting for waiting in self._unwritten if waiting.unit in units])
        table.kept = {blocks: unit for blocks, unit in table.kept.items() if unit not in units}
        self.pool.free(span.unit for span in reversed(spans))
        del table.spans[: len(spans)]

    def _find(self, content: bytes) -> int | None:
        return self.pool.find(content + self._suffix)

    def _snapshot(self, hit: Sequence[bytes]) -> int:
        found = self._find(hit[-1])
        assert found is not None, "a prefix hit vanished between lookup and allocation"
        return found

    def _start(self, reach: Reach) -> StateTable:
        if reach.partial:  # the copied state takes the place of a snapshot
            return StateTable([NULL_BLOCK] * len(reach.hit), [], reach.ahead)
        if not reach.hit:
            return StateTable([], [], reach.ahead)
        snapshot, last = self._snapshot(reach.hit), len(reach.hit) - 1
        self.pool.touch([snapshot])
        return StateTable([NULL_BLOCK] * last + [snapshot], [Span(last, snapshot)], reach.ahead)
