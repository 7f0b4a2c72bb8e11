"""The cache as the scheduler sees it: room for a request's tokens, and prefixes already computed.

In: requests and token counts. Out: NewBlocks per cache group, hit lengths. Nothing is changed when
something does not fit. Must not know: why a request runs, steps, arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle

from jengine.config import CacheConfig, CacheGroup
from jengine.errors import ConfigError
from jengine.kvcache.block_pool import NULL_BLOCK, BlockPool
from jengine.kvcache.hashing import block_hash, extra_keys, group_suffix, root_hash
from jengine.kvcache.specs import rules_for
from jengine.plan import NewBlocks
from jengine.request import Request

NEVER = 2**62


@dataclass
class PrefixStats:
    """Tokens looked up and tokens found, counted when a request is admitted."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


class GroupCache:
    """One cache group: its rules, its blocks, and the keys of its contents."""

    def __init__(self, index: int, group: CacheGroup, block_size: int, num_blocks: int) -> None:
        self.index = index
        self.rules = rules_for(group.spec, block_size)
        self.pool = BlockPool(num_blocks)
        self._suffix = group_suffix(index)

    def find(self, content: bytes) -> int | None:
        return self.pool.find(content + self._suffix)

    def publish(self, block: int, content: bytes) -> None:
        self.pool.publish(block, content + self._suffix)

    def forget(self, content: bytes) -> None:
        self.pool.forget(content + self._suffix)

    def longest_hit(self, contents: list[bytes], most: int) -> int:
        return self.rules.longest_hit(lambda i: self.find(contents[i]) is not None, most)

    def hit_table(self, contents: list[bytes], num_blocks: int, block_size: int) -> list[int]:
        """The table of a prefix hit: null blocks where nothing will be read."""
        skipped = self.rules.skippable(num_blocks * block_size)
        table = [NULL_BLOCK] * min(skipped, num_blocks)
        for content in contents[len(table) : num_blocks]:
            block = self.find(content)
            assert block is not None, "a prefix hit vanished between lookup and allocation"
            table.append(block)
        return table


class Holding:
    """The blocks of one running request: one table a group, equally long."""

    __slots__ = ("findable", "published", "skipped", "tables")

    def __init__(self, tables: list[list[int]], published: int, findable: bool) -> None:
        self.tables = tables
        self.skipped = [table.count(NULL_BLOCK) for table in tables]
        self.published = published
        self.findable = findable  # whether its blocks may be published at all


class CacheCoordinator:
    """Blocks for requests, in every cache group at once."""

    def __init__(self, config: CacheConfig, weights_version: int = 0) -> None:
        if len(config.num_blocks) != len(config.groups) or not config.groups:
            raise ConfigError(
                f"num_blocks={config.num_blocks} for {len(config.groups)} cache groups: "
                "expected one number for each of at least one group."
            )
        self.config = config
        self.block_size = config.block_size
        self.weights_version = weights_version
        self.stats = PrefixStats()
        self.groups = [
            GroupCache(index, group, config.block_size, num_blocks)
            for index, (group, num_blocks) in enumerate(
                zip(config.groups, config.num_blocks, strict=True)
            )
        ]
        self._root = root_hash(weights_version)
        self._holdings: dict[str, Holding] = {}

    @property
    def usage(self) -> float:
        """Share of blocks in use in the fullest group, 0 to 1."""
        return max(group.pool.num_used / group.pool.total for group in self.groups)

    def can_ever_hold(self, num_tokens: int, max_chunk: int) -> bool:
        """Whether one request of this length fits in the empty cache."""
        return all(
            group.rules.blocks_needed(num_tokens, max_chunk) <= group.pool.total
            for group in self.groups
        )

    def find_prefix(self, request: Request) -> int:
        """Tokens of a request without blocks that are cached already, in whole blocks.

        The last known token is never among them: it must run again to give logits.
        """
        if not self.config.enable_prefix_caching or request.wire.skip_reading_prefix_cache:
            return 0
        blocks = (request.num_known - 1) // self.block_size
        contents = self._contents(request, blocks)
        agreeing = 0
        for group in cycle(self.groups):  # to a fixed point: a group can only shorten the hit
            found = group.longest_hit(contents, blocks)
            agreeing = agreeing + 1 if found == blocks else 1
            blocks = found
            if agreeing == len(self.groups):
                break
        return blocks * self.block_size

    def allocate(
        self, request: Request, num_new_tokens: int, hit: int = 0, *, keep_free: int = 0
    ) -> list[NewBlocks] | None:
        """Blocks for the next tokens, or None (and nothing changed) if they do not fit.

        `hit` is what `find_prefix` said, for a request that holds nothing yet. At least
        `keep_free` blocks stay unowned in every group.
        """
        length = -(-(request.num_computed + hit + num_new_tokens) // self.block_size)
        holding = self._holdings.get(request.request_id)
        if holding is None:
            return self._start(request, length, hit, keep_free)
        return self._extend(request, holding, length, keep_free)

    def has_room(self, requests: Iterable[Request], num_new_tokens: int) -> bool:
        """Whether all of these running requests can take so many more tokens.

        Without what their windows would give back, so `allocate` succeeds where this says yes.
        """
        fresh = 0
        for request in requests:
            length = -(-(request.num_computed + num_new_tokens) // self.block_size)
            fresh += max(length - len(self._holdings[request.request_id].tables[0]), 0)
        return all(fresh <= group.pool.num_unowned for group in self.groups)

    def publish(self, request: Request, up_to: int) -> None:
        """Let others find the full blocks among the first `up_to` tokens that are known."""
        holding = self._holdings[request.request_id]
        if not holding.findable:
            request.publish_at = NEVER
            return
        full = min(up_to, request.num_known) // self.block_size
        contents = self._contents(request, full)
        for group, table in zip(self.groups, holding.tables, strict=True):
            for index in range(holding.published, full):
                if table[index] != NULL_BLOCK:
                    group.publish(table[index], contents[index])
        holding.published = max(holding.published, full)
        request.publish_at = (holding.published + 1) * self.block_size

    def free(self, request: Request) -> None:
        """Give back all blocks. Published ones can be found until they are reused."""
        holding = self._holdings.pop(request.request_id)
        request.capacity = 0
        for group, table in zip(self.groups, holding.tables, strict=True):
            group.pool.free(block for block in reversed(table) if block != NULL_BLOCK)

    def distrust(self, request: Request) -> None:
        """Make sure that nothing this request has computed is found again, whoever holds it.

        By content, not by block: what fell out of a window is forgotten as well.
        """
        for content in request.block_hashes:
            for group in self.groups:
                group.forget(content)
        if request.request_id in self._holdings:
            self._holdings[request.request_id].findable = False

    def set_weights_version(self, version: int) -> None:
        """Blocks of other weights are no longer found and age out.

        Requests that hold blocks publish no more: theirs mix both weights.
        """
        if version == self.weights_version:
            return
        self.weights_version = version
        self._root = root_hash(version)
        for holding in self._holdings.values():
            holding.findable = False

    def reset_prefix_cache(self) -> bool:
        """Forget every content; False, and nothing changed, while any block is in use."""
        if any(group.pool.num_used for group in self.groups):
            return False
        for group in self.groups:
            group.pool.forget_all()
        return True

    def table(self, request: Request, group: int) -> list[int]:
        """A copy of a request's block table, empty if it holds none."""
        holding = self._holdings.get(request.request_id)
        return list(holding.tables[group]) if holding else []

    def check(self) -> None:
        """Assert that every block's owners are exactly the tables that hold it."""
        for index, group in enumerate(self.groups):
            group.pool.check()
            held = Counter(b for h in self._holdings.values() for b in h.tables[index])
            for block in range(1, group.pool.total + 1):
                owners = group.pool.owners(block)
                assert owners == held[block], f"block {block}: {owners} owners, {held[block]} held"

    def _start(
        self, request: Request, length: int, hit: int, keep_free: int
    ) -> list[NewBlocks] | None:
        """First blocks of a request: the hit's, which get one more owner, and fresh ones."""
        hit_blocks = hit // self.block_size
        contents = self._contents(request, hit_blocks)
        tables = [g.hit_table(contents, hit_blocks, self.block_size) for g in self.groups]
        fresh = length - hit_blocks
        for group, table in zip(self.groups, tables, strict=True):
            # Hit blocks that nobody owns leave the unowned ones too.
            unowned = sum(b != NULL_BLOCK and group.pool.owners(b) == 0 for b in table)
            if fresh + unowned + keep_free > group.pool.num_unowned:
                return None
        for group, table in zip(self.groups, tables, strict=True):
            group.pool.touch(block for block in table if block != NULL_BLOCK)
            table += group.pool.allocate(fresh)
        findable = self.config.enable_prefix_caching
        self._holdings[request.request_id] = Holding(tables, hit_blocks, findable)
        self._begin(request, length, hit)
        return [NewBlocks(request.row, g, 0, list(table)) for g, table in enumerate(tables)]

    def _begin(self, request: Request, length: int, hit: int) -> None:
        request.capacity = length * self.block_size
        request.publish_at = hit + self.block_size
        if request.wire.skip_reading_prefix_cache:
            return
        if request.num_preemptions:
            self.stats.preempted_queries += request.num_known
            self.stats.preempted_hits += hit
        else:
            self.stats.queries += request.num_known
            self.stats.hits += hit

    def _extend(
        self, request: Request, holding: Holding, length: int, keep_free: int
    ) -> list[NewBlocks] | None:
        """More blocks of a running request, after those no step will read again are released."""
        first = len(holding.tables[0])
        fresh = length - first
        if fresh <= 0:
            return []
        # Steps in flight still read: only committed tokens let the window move on.
        skippable = [group.rules.skippable(request.num_processed) for group in self.groups]
        for index, group in enumerate(self.groups):
            leaving = holding.tables[index][holding.skipped[index] : skippable[index]]
            freed = sum(group.pool.owners(block) == 1 for block in leaving)
            if fresh + keep_free > group.pool.num_unowned + freed:
                return None
        added = []
        for index, group in enumerate(self.groups):
            self._skip(holding, index, skippable[index])
            blocks = group.pool.allocate(fresh)
            holding.tables[index] += blocks
            added.append(NewBlocks(request.row, index, first, blocks))
        request.capacity = length * self.block_size
        return added

    def _skip(self, holding: Holding, index: int, skippable: int) -> None:
        """Release a table's blocks before `skippable`; the null block takes their place."""
        skipped, table = holding.skipped[index], holding.tables[index]
        if skippable <= skipped:
            return
        self.groups[index].pool.free(reversed(table[skipped:skippable]))
        table[skipped:skippable] = [NULL_BLOCK] * (skippable - skipped)
        holding.skipped[index] = skippable

    def _contents(self, request: Request, num_blocks: int) -> list[bytes]:
        """The request's block hashes, made as far as needed and kept with it."""
        hashes = request.block_hashes
        if request.weights_version != self.weights_version:
            assert request.request_id not in self._holdings, "hashes of two weights would mix"
            hashes.clear()
            request.weights_version = self.weights_version
        size = self.block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else self._root
            tokens = request.token_ids[index * size : (index + 1) * size]
            hashes.append(block_hash(parent, tokens, extra_keys(request.wire, index)))
        return hashes
