"""Cache group of attention layers: a block table per request, by the rules of its kind.

Blocks that no token will read again are replaced by the null block; the rules say when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from jengine.config import CacheKind, CacheSpec
from jengine.errors import ConfigError
from jengine.kvcache.block_pool import NULL_BLOCK, BlockPool
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.group_cache import IsExternal, NewUnits, Reach, never_external
from jengine.kvcache.hashing import group_suffix
from jengine.kvcache.residency import BlockResidency


class BlockTable:
    __slots__ = ("blocks", "published", "skipped")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks
        self.skipped = blocks.count(NULL_BLOCK)  # leading blocks that were given back
        self.published = len(blocks)  # leading blocks that can be found, or could


class PagedGroup:
    """Block tables on a pool of reference-counted blocks."""

    def __init__(self, index: int, spec: CacheSpec, block_size: int, num_blocks: int) -> None:
        self.rules = rules_for(spec, block_size)
        self.pool = BlockPool(num_blocks)
        self._block_size = block_size
        self._suffix = group_suffix(index)
        self._tables: dict[int, BlockTable] = {}

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
        return rules_for(spec, block_size).blocks_needed(num_tokens, max_chunk)

    def find(self, content: bytes) -> int | None:
        return self.pool.find(content + self._suffix)

    def longest_hit(
        self, contents: Sequence[bytes], most: int, is_external: IsExternal = never_external
    ) -> int:
        def present(index: int) -> bool:
            key = contents[index] + self._suffix
            return self.pool.find(key) is not None or is_external(key)

        return self.rules.longest_hit(present, most)

    def read_by_hit(self, contents: Sequence[bytes]) -> list[bytes]:
        skipped = min(self.rules.skippable(len(contents) * self._block_size), len(contents))
        return [content + self._suffix for content in contents[skipped:]]

    def writer(self, contents: Sequence[bytes], most: int) -> int | None:
        return None  # what is planned can be found at once

    def chunk_end(self, start: int, end: int) -> int:
        return self.rules.chunk_end(start, end)

    def drafts_end(self, start: int, end: int) -> int:
        return end

    def demand(self, reach: Reach) -> int:
        length = -(-reach.end // self._block_size)
        table = self._tables.get(reach.holder)
        if table is None:
            found = self._hit_blocks(reach.hit)
            # Blocks of the hit that have no owner are free ones too, until they are taken.
            unowned = sum(b != NULL_BLOCK and self.pool.owners(b) == 0 for b in found)
            return length - len(found) + unowned
        fresh = length - len(table.blocks)
        if fresh <= 0:
            return 0
        leaving = table.blocks[table.skipped : self.rules.skippable(reach.settled)]
        return fresh - sum(self.pool.owners(block) == 1 for block in leaving)

    def reserve(self, reach: Reach) -> NewUnits | None:
        length = -(-reach.end // self._block_size)
        table = self._tables.get(reach.holder)
        if table is None:
            return self._started(reach, length)
        first = len(table.blocks)
        if length <= first:
            return None
        self._skip(table, self.rules.skippable(reach.settled))
        blocks = self.pool.allocate(length - first, table.blocks[-1])
        table.blocks += blocks
        return NewUnits(first, blocks)

    def capacity(self, holder: int) -> int:
        return len(self._tables[holder].blocks) * self._block_size

    def publish(self, holder: int, contents: Sequence[bytes], count: int) -> None:
        table = self._tables[holder]
        for index in range(table.published, count):
            block = table.blocks[index]
            if block != NULL_BLOCK:
                self.pool.publish(block, contents[index] + self._suffix)
        table.published = max(table.published, count)

    def has_partial_block(self, contents: Sequence[bytes], partial: bytes) -> bool:
        count = len(contents)
        return self.longest_hit(contents, count) == count and self.find(partial) is not None

    def publish_partial_block(self, holder: int, contents: Sequence[bytes], partial: bytes) -> None:
        block = self._tables[holder].blocks[len(contents)]
        if not self.pool.is_findable(block):
            self.pool.publish(block, partial + self._suffix, told=False)

    def forget_partial_block(self, partial: bytes) -> None:
        self.pool.forget_untold(partial + self._suffix)

    def step_ended(self) -> None:
        """No-op: within a step, blocks are written before any row reads."""

    def free(self, holder: int) -> None:
        blocks = self._tables.pop(holder).blocks
        self.pool.free([block for block in reversed(blocks) if block != NULL_BLOCK])

    def forget(self, content: bytes) -> None:
        self.pool.forget(content + self._suffix)

    def forget_all(self) -> None:
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
        held = Counter(block for table in self._tables.values() for block in table.blocks)
        self.pool.check_owners(held)

    def _hit_blocks(self, hit: Sequence[bytes]) -> list[int]:
        """Block table of a prefix hit: null blocks where no later token reads."""
        skipped = min(self.rules.skippable(len(hit) * self._block_size), len(hit))
        blocks = [NULL_BLOCK] * skipped
        for content in hit[skipped:]:
            block = self.find(content)
            assert block is not None, "a prefix hit vanished between lookup and allocation"
            blocks.append(block)
        return blocks

    def _started(self, reach: Reach, length: int) -> NewUnits:
        table = self._tables[reach.holder] = BlockTable(self._hit_blocks(reach.hit))
        self.pool.touch([block for block in table.blocks if block != NULL_BLOCK])
        # The new block may be the very one that is copied: nothing else writes to it before.
        source = self.find(reach.partial) if reach.partial else None
        last = table.blocks[-1] if table.blocks else NULL_BLOCK
        table.blocks += self.pool.allocate(length - len(table.blocks), last)
        copied = None if source is None else (source, table.blocks[len(reach.hit)])
        return NewUnits(0, list(table.blocks), copied)

    def _skip(self, table: BlockTable, skippable: int) -> None:
        """Free the table's first `skippable` blocks, leaving null blocks."""
        skipped = table.skipped
        if skippable > skipped:
            self.pool.free(reversed(table.blocks[skipped:skippable]))
            table.blocks[skipped:skippable] = [NULL_BLOCK] * (skippable - skipped)
            table.skipped = skippable


class CacheRules(Protocol):
    """Rules of a paged kind. Units are blocks unless a name says tokens."""

    def skippable(self, tokens: int) -> int:
        """Leading blocks that no token at position `tokens` or later reads."""

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        """The longest usable prefix of at most `most` blocks, given which blocks are cached."""

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        """The most blocks one request of `num_tokens` holds while running chunks of `max_chunk`."""

    def chunk_end(self, start: int, end: int) -> int:
        """Latest allowed end, at most `end`, of a chunk that begins at `start`."""


class FullRules:
    """Rules of full attention: a hit needs every earlier block, and none can be skipped or freed
    early."""

    def __init__(self, spec: CacheSpec, block_size: int) -> None:
        self.block_size = block_size

    def skippable(self, tokens: int) -> int:
        return 0

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        return next((i for i in range(most) if not present(i)), most)

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        return -(-num_tokens // self.block_size)

    def chunk_end(self, start: int, end: int) -> int:
        return end


class SlidingRules:
    """Sliding window: a token reads itself and the `window` - 1 tokens before it."""

    def __init__(self, spec: CacheSpec, block_size: int) -> None:
        if spec.window is None or spec.window < 1:
            raise ConfigError(f"window={spec.window}: a sliding cache needs a window of 1 or more.")
        self.window = spec.window
        self.block_size = block_size

    def skippable(self, tokens: int) -> int:
        return max(0, tokens - self.window + 1) // self.block_size

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        """Search from the right for the first run of present blocks that fills a window, or that
        reaches the start."""
        needed = -(-(self.window - 1) // self.block_size)
        run = 0
        for index in range(most - 1, -1, -1):
            if run == needed:
                return index + 1 + run
            run = run + 1 if present(index) else 0
        return run

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        # The window and the chunk together, at the worst alignment to blocks.
        span = self.window - 1 + max_chunk
        return min(
            -(-num_tokens // self.block_size), (span + self.block_size - 2) // self.block_size + 1
        )

    def chunk_end(self, start: int, end: int) -> int:
        return end


class ChunkedRules:
    """Chunked attention: a token reads itself and earlier tokens of its chunk of `window` tokens. A
    step's tokens of one request are all in one chunk, so that they read the same blocks."""

    def __init__(self, spec: CacheSpec, block_size: int) -> None:
        assert spec.window is not None, "a chunk has a length"
        if spec.window % block_size:
            raise ConfigError(
                f"block_size={block_size}: expected a divisor of the {spec.window} tokens within "
                "which layers of this model attend."
            )
        self.window = spec.window
        self.block_size = block_size

    def skippable(self, tokens: int) -> int:
        return tokens // self.window * self.window // self.block_size

    def longest_hit(self, present: Callable[[int], bool], most: int) -> int:
        """Search from the right for the longest prefix whose last attention chunk is present."""
        count = most
        while count:
            chunk = range(count - 1, self.skippable(count * self.block_size) - 1, -1)
            missing = next((index for index in chunk if not present(index)), None)
            if missing is None:
                return count
            count = missing
        return 0

    def blocks_needed(self, num_tokens: int, max_chunk: int) -> int:
        # A chunk but for its last token, and the tokens to come.
        span = self.window - 1 + max_chunk
        return -(-min(num_tokens, span) // self.block_size)

    def chunk_end(self, start: int, end: int) -> int:
        return min(end, (start // self.window + 1) * self.window)


RULES: dict[CacheKind, Callable[[CacheSpec, int], CacheRules]] = {
    "full": FullRules,
    "sliding": SlidingRules,
    "chunked": ChunkedRules,
}


def rules_for(spec: CacheSpec, block_size: int) -> CacheRules:
    """Rules of a paged kind; latent caches have those of full or sliding attention."""
    latent: CacheKind = "full" if spec.window is None else "sliding"
    return RULES[latent if spec.shares_heads else spec.kind](spec, block_size)
