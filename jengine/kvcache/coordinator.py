"""The cache as the scheduler sees it: room for a request's tokens, and prefixes already computed.

In: requests and token counts. Out: NewBlocks per cache group, hit lengths. Nothing is changed when
something does not fit. Must not know: kinds of groups, why a request runs, arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import cycle
from operator import gt
from typing import NamedTuple

from jengine.config import CacheConfig
from jengine.counts import BlockTimes
from jengine.errors import ConfigError
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.contents import Contents
from jengine.kvcache.group_cache import GroupCache, Reach
from jengine.kvcache.kinds import blocks_needed, group_cache
from jengine.kvcache.prefix_stats import PrefixStats
from jengine.kvcache.residency import BlockResidency
from jengine.plan import NewBlocks
from jengine.request import Request

NEVER = 2**62


class Holding:
    """What the coordinator records of one running request; its units belong to the groups."""

    __slots__ = ("findable", "holder")

    def __init__(self, holder: int, findable: bool) -> None:
        self.holder = holder
        self.findable = findable  # whether its blocks may be published at all


class Refused(NamedTuple):
    """A new request for which there was no room, and what it would have taken in each group."""

    request: Request
    num_known: int
    weights_version: int
    hit: int
    demands: list[int]


class CacheCoordinator:
    """Asks every group; a request has room if all of them have."""

    def __init__(self, config: CacheConfig, weights_version: int = 0) -> None:
        if len(config.num_blocks) != len(config.groups) or not config.groups:
            raise ConfigError(
                f"num_blocks={config.num_blocks} for {len(config.groups)} cache groups: "
                "expected one number for each of at least one group."
            )
        self.config = config
        self.block_size = config.block_size
        self._lookahead = config.lookahead
        self.stats = PrefixStats()
        self.groups: list[GroupCache] = [
            group_cache(index, group, config.block_size, num_blocks)
            for index, (group, num_blocks) in enumerate(
                zip(config.groups, config.num_blocks, strict=True)
            )
        ]
        self._block_times = BlockTimes() if config.measured_blocks else None
        if self._block_times is not None:
            for group in self.groups:
                group.measure(BlockResidency(config.measured_blocks, self._block_times))
        self._contents = Contents(config.block_size, weights_version, config.stored_as)
        self._holdings: dict[str, Holding] = {}
        self._next_holder = 0
        self._refused: Refused | None = None
        # Holders whose requests have ended, by the step that must end before they give back.
        self._pinned: deque[tuple[int, int]] = deque()

    @property
    def weights_version(self) -> int:
        """The version of the weights whose blocks can be found."""
        return self._contents.weights_version

    @property
    def usage(self) -> float:
        """Share of blocks in use in the fullest group, 0 to 1."""
        return max(group.num_used / group.num_units for group in self.groups)

    @property
    def block_times(self) -> BlockTimes | None:
        """How long blocks stay, if that is measured."""
        return None if self._block_times is None else self._block_times.copy()

    def record(self) -> ContentJournal:
        """A journal of the contents of the first group, from now on."""
        journal = ContentJournal()
        self.groups[0].record(journal)
        return journal

    def can_ever_hold(self, num_tokens: int, max_chunk: int) -> bool:
        """Whether one request of this length fits in the empty cache."""
        return all(
            blocks_needed(one.spec, num_tokens + self._lookahead, self.block_size, max_chunk)
            <= group.num_units
            for one, group in zip(self.config.groups, self.groups, strict=True)
        )

    def find_prefix(self, request: Request) -> int:
        """Tokens of a request without blocks that are cached already, in whole blocks.

        The last known token is never among them: it must run again to give logits.
        """
        if not self.config.enable_prefix_caching or request.wire.skip_reading_prefix_cache:
            return 0
        blocks = (request.num_known - 1) // self.block_size
        contents = self._contents.of(request, blocks)
        agreeing = 0
        for group in cycle(self.groups):  # to a fixed point: a group can only shorten the hit
            found = group.longest_hit(contents, blocks)
            agreeing = agreeing + 1 if found == blocks else 1
            blocks = found
            if agreeing == len(self.groups):
                break
        return blocks * self.block_size

    def chunk_end(self, start: int, end: int) -> int:
        """Where a chunk from `start` on may end at the latest, at most at `end`."""
        for group in self.groups:
            end = group.chunk_end(start, end)
        return end

    def allocate(
        self, request: Request, num_new_tokens: int, hit: int = 0
    ) -> list[NewBlocks] | None:
        """Blocks for the next tokens, or None (and nothing changed) if they do not fit.

        `hit` is what `find_prefix` said, for a request that holds nothing yet.
        """
        holding = self._holdings.get(request.request_id)
        end = request.num_computed + hit + num_new_tokens + self._lookahead
        found = []
        if holding is None:
            blocks = hit // self.block_size
            found = self._contents.of(request, blocks)[:blocks]
        holder = self._next_holder if holding is None else holding.holder
        reach = Reach(holder, end, request.num_processed, found)
        demands = [group.demand(reach) for group in self.groups]
        if any(map(gt, demands, (group.num_free for group in self.groups))):
            if holding is None:
                self._refused = Refused(
                    request, request.num_known, self.weights_version, hit, demands
                )
            return None
        if holding is None:
            self._begin(request, hit)
        added = []
        for index, group in enumerate(self.groups):
            new = group.reserve(reach)
            if new is not None:
                added.append(NewBlocks(request.row, index, new.first, new.units))
        most = min(group.capacity(holder) for group in self.groups)
        request.capacity = most - self._lookahead
        return added

    def still_lacks_room(self, request: Request) -> bool:
        """Whether a new request that `allocate` has refused would be refused again.

        So that a long prompt is not looked up at every step while it waits: its demand can only
        have become less if the block after its prefix hit can be found now.
        """
        last = self._refused
        if last is None or last.request is not request:
            return False
        if (last.num_known, last.weights_version) != (request.num_known, self.weights_version):
            return False
        if not any(map(gt, last.demands, (group.num_free for group in self.groups))):
            return False
        return not self.hit_has_grown(request, last.hit)

    def hit_has_grown(self, request: Request, hit: int) -> bool:
        """Whether the block after the prefix hit of a request without blocks can be found now."""
        blocks = hit // self.block_size
        follows = request.block_hashes[blocks : blocks + 1]
        return any(group.longest_hit(follows, len(follows)) for group in self.groups)

    def has_room(self, requests: Sequence[Request], num_new_tokens: int) -> bool:
        """Whether all of these running requests can take so many more tokens.

        What one gives back does not count for the others, so `allocate` succeeds for all of them,
        in any order, where this says yes.
        """
        reaches = [
            Reach(
                self._holdings[request.request_id].holder,
                request.num_computed + num_new_tokens + self._lookahead,
                request.num_processed,
            )
            for request in requests
        ]
        return all(
            sum(max(group.demand(reach), 0) for reach in reaches) <= group.num_free
            for group in self.groups
        )

    def publish(self, request: Request, up_to: int) -> None:
        """Let others find the full blocks among the first `up_to` tokens that are known."""
        holding = self._holdings[request.request_id]
        if not holding.findable:
            request.publish_at = NEVER
            return
        full = min(up_to, request.num_known) // self.block_size
        contents = self._contents.of(request, full)
        for group in self.groups:
            group.publish(holding.holder, contents, full)
        request.publish_at = max(request.publish_at, (full + 1) * self.block_size)

    def free(self, request: Request, after_step: int | None = None) -> None:
        """Give back all blocks: at once, or when a step that still uses them has ended.

        Published ones can be found until they are reused.
        """
        holder = self._holdings.pop(request.request_id).holder
        request.capacity = 0
        if after_step is None:
            self._release(holder)
        else:
            self._pinned.append((after_step, holder))

    def step_ended(self, step: int) -> None:
        """Give back the blocks that waited for this step, or an earlier one."""
        if self._pinned:
            due = [holder for last, holder in self._pinned if last <= step]
            self._pinned = deque(pinned for pinned in self._pinned if pinned[0] > step)
            for holder in due:
                self._release(holder)

    def distrust(self, request: Request) -> None:
        """Make sure that nothing this request has computed is found again, by content.

        So what fell out of a window, and equal contents of other requests, are forgotten as well.
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
        self._contents = Contents(self.block_size, version, self.config.stored_as)
        for holding in self._holdings.values():
            holding.findable = False

    def reset_prefix_cache(self) -> bool:
        """Forget every content; False, and nothing changed, while any block is in use."""
        if self._holdings or self._pinned:
            return False
        for group in self.groups:
            group.forget_all()
        return True

    def table(self, request: Request, group: int) -> list[int]:
        """A copy of a request's block table, empty if it holds none."""
        holding = self._holdings.get(request.request_id)
        return self.groups[group].table(holding.holder) if holding else []

    def check(self) -> None:
        """Assert that every group's units are accounted for."""
        for group in self.groups:
            group.check()

    def _begin(self, request: Request, hit: int) -> None:
        findable = self.config.enable_prefix_caching
        self._holdings[request.request_id] = Holding(self._next_holder, findable)
        self._next_holder += 1
        request.publish_at = hit + self.block_size
        self.stats.count(request, hit)

    def _release(self, holder: int) -> None:
        for group in self.groups:
            group.free(holder)
