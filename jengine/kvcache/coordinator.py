"""The KV cache as the scheduler sees it: allocation and prefix hits over all cache groups.

In: requests and token counts. Out: NewBlocks per cache group, hit lengths. An allocation that does
not fit changes nothing. `prefix_lookup` finds prefixes, `leases` tracks holders,
`content_listeners` are informed. Must not know: kinds of groups, why a request runs, arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import gt

from jengine.config import CacheConfig
from jengine.counts import BlockTimes
from jengine.errors import ConfigError
from jengine.kvcache.content_listeners import ContentListeners
from jengine.kvcache.group_cache import GroupCache, IsExternal, Reach, never_external
from jengine.kvcache.kinds import blocks_needed, group_cache
from jengine.kvcache.leases import Leases
from jengine.kvcache.partial_blocks import PartialBlocks
from jengine.kvcache.prefix_lookup import PrefixHit, PrefixLookup
from jengine.kvcache.residency import BlockResidency
from jengine.kvcache.token_records import TokenRecords
from jengine.plan import Forks, NewBlocks
from jengine.request import ReadPrompt, Request, WireRequest

NEVER = 2**62


class CacheCoordinator:
    """Combines the cache groups: an allocation succeeds only if every group has room."""

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
        # What steps say of each token besides tokens; None: nothing is kept.
        self.records: TokenRecords | None = None
        if config.keeps_records:
            self.records = TokenRecords(config.block_size, max(config.num_blocks))
        self._prefixes = PrefixLookup(config, self.groups, self.records, weights_version)
        self._partial_blocks = PartialBlocks(self.groups, self._prefixes, config.block_size)
        self._forks: dict[int, Forks] = {}  # by group
        self.listeners = ContentListeners(config, self.groups)
        self._leases = Leases()
        # The last new request that had no room, and its demand per group.
        self._refused: tuple[PrefixHit, list[int]] | None = None

    @property
    def weights_version(self) -> int:
        return self._prefixes.contents.weights_version

    @property
    def usage(self) -> float:
        """Block utilisation of the fullest group, 0 to 1."""
        return max(group.num_used / group.num_units for group in self.groups)

    @property
    def block_times(self) -> BlockTimes | None:
        """Block lifetime statistics, if measured."""
        return None if self._block_times is None else self._block_times.copy()

    def can_ever_hold(self, num_tokens: int, max_chunk: int) -> bool:
        """Whether one request of this length fits in the empty cache."""
        ahead = self._lookahead
        return all(
            blocks_needed(one.spec, num_tokens + ahead, self.block_size, max_chunk + ahead)
            <= group.num_units
            for one, group in zip(self.config.groups, self.groups, strict=True)
        )

    def read(self, wire: WireRequest) -> ReadPrompt:
        """Hash a prompt for later lookups. The only thread-safe method."""
        return self._prefixes.contents.read(wire, hashes=self.config.enable_prefix_caching)

    def find_prefix(self, request: Request, is_external: IsExternal = never_external) -> int:
        """Length of the cached prefix of a request that has no blocks, in tokens.

        Full blocks, or all but the last token for a fork. `is_external` tells which contents could
        be loaded from outside the device.
        """
        hit = self._prefixes.find(request, is_external)
        return self._partial_blocks.begins_at(request, hit)

    def read_by_hit(self, request: Request, hit: int) -> list[list[bytes]]:
        """Per group, keys of the blocks that a request reads after a prefix hit of `hit` tokens."""
        return self._prefixes.read_by_hit(request, hit)

    def prefix_writer(self, request: Request) -> int | None:
        """Holder whose planned steps write more of this prefix than is findable until they have
        run, or None."""
        return self._prefixes.writer(request)

    def chunk_end(self, start: int, end: int) -> int:
        """Latest allowed end of a prefill chunk that starts at `start`; at most `end`."""
        for group in self.groups:
            end = group.chunk_end(start, end)
        return end

    def drafts_end(self, start: int, end: int) -> int:
        """Latest allowed end of a decode with drafts that starts at `start`; at most `end`."""
        return min(group.drafts_end(start, end) for group in self.groups)

    def allocate(
        self, request: Request, num_new_tokens: int, hit: int = 0
    ) -> list[NewBlocks] | None:
        """Allocate blocks for the next tokens. None, with nothing changed, if they do not fit.

        `hit`: result of `find_prefix`, for a request without blocks.
        """
        lease = self._leases.get(request)
        start = request.num_computed + hit
        end = start + num_new_tokens + self._lookahead
        found, partial = ([], b"") if lease else self._partial_blocks.parts_of_hit(request, hit)
        holder = self._leases.next_holder if lease is None else lease.holder
        reach = Reach(holder, end, request.num_processed, found, start, self._lookahead, partial)
        demands = [group.demand(reach) for group in self.groups]
        if self._lacks(demands):
            if lease is None:
                self._refused = self._prefixes.note(request, hit), demands
            return None
        if lease is None:
            self._begin(request, hit)
        added = []
        for index, group in enumerate(self.groups):
            new = group.reserve(reach)
            if new is not None:
                added.append(NewBlocks(request.row, index, new.first, new.units))
                if new.copied is not None:
                    self._note_fork(index, *new.copied)
        most = min(group.capacity(holder) for group in self.groups)
        request.capacity = most - self._lookahead
        return added

    def take_forks(self) -> list[Forks]:
        """Block copies (copy on write) needed by the requests allocated since the last call."""
        forks, self._forks = self._forks, {}
        return list(forks.values())

    def still_lacks_room(self, request: Request) -> bool:
        """Whether `allocate`, which has refused this new request, would refuse it again: its demand
        falls only if the block after its prefix hit becomes cached."""
        if self._refused is None:
            return False
        hit, demands = self._refused
        return self._prefixes.finds_again(hit, request) and self._lacks(demands)

    def note_hit(self, request: Request, hit: int) -> PrefixHit:
        """A result of `find_prefix`, for `finds_again`."""
        return self._prefixes.note(request, hit)

    def finds_again(self, hit: PrefixHit, request: Request) -> bool:
        """Whether `find_prefix` of this request would return the noted hit."""
        return self._prefixes.finds_again(hit, request)

    def has_room(self, requests: Sequence[Request], num_new_tokens: int) -> bool:
        """Whether each of these running requests can take `num_new_tokens` more.

        Conservative: units that one gives back do not count for the others, so if True, `allocate`
        succeeds for all in any order.
        """
        reaches = [
            Reach(
                self._leases.of(request).holder,
                request.num_computed + num_new_tokens + self._lookahead,
                request.num_processed,
                start=request.num_computed,
                ahead=self._lookahead,
            )
            for request in requests
        ]
        return all(
            sum(max(group.demand(reach), 0) for reach in reaches) <= group.num_free
            for group in self.groups
        )

    def publish(self, request: Request, up_to: int) -> None:
        """Make the full blocks among the first `up_to` known tokens findable."""
        lease = self._leases.of(request)
        if not lease.findable:
            request.publish_at = NEVER
            return
        full = min(up_to, request.num_known) // self.block_size
        contents = self._prefixes.contents.of(request, full)
        for group in self.groups:
            group.publish(lease.holder, contents, full)
        self.listeners.explain(request)
        if self.records is not None:
            self.records.publish(request, contents, full)
        request.publish_at = max(request.publish_at, (full + 1) * self.block_size)

    def keep_partial_block(self, request: Request) -> None:
        """Make the partial last block of a finishing request findable for forks, unless steps in
        flight extend it."""
        is_settled = request.num_computed == request.num_processed
        lease = self._leases.of(request)
        if self.config.keeps_partial_blocks and lease.findable and is_settled:
            self._partial_blocks.keep(request, lease.holder)

    def free(self, request: Request, after_step: int | None = None) -> None:
        """Free all blocks, at once or after step `after_step`. Published contents stay cached until
        reuse."""
        holder = self._leases.end(request)
        request.capacity = 0
        if after_step is None:
            self._release(holder)
        else:
            self._leases.pin(holder, after_step)

    def step_ended(self, step: int) -> None:
        """Free the blocks that waited for this step or an earlier one."""
        for group in self.groups:
            group.step_ended()
        self.listeners.step_ended()
        for holder in self._leases.due(step):
            self._release(holder)

    def distrust(self, request: Request) -> None:
        """Invalidate everything this request has computed, by content.

        Also blocks that left its window, and equal contents computed by other requests.
        """
        self._partial_blocks.forget_all()
        for content in request.block_hashes:
            for group in self.groups:
                group.forget(content)
        self._leases.hide(request)

    def set_weights_version(self, version: int) -> None:
        """Invalidate blocks of other weights; they age out.

        Requests that hold blocks publish no more, since theirs mix both weights.
        """
        if version == self.weights_version:
            return
        self._prefixes.set_weights_version(version)
        self._leases.hide_all()

    def reset_prefix_cache(self) -> bool:
        """Clear the cache. False, with nothing changed, while any block is in use."""
        if self._leases:
            return False
        self._partial_blocks.forget_all()
        for group in self.groups:
            group.forget_all()
        self.listeners.cleared()
        return True

    def resize(self, num_blocks: Sequence[int]) -> None:
        """Change the number of blocks per group, keeping the contents of those that remain.

        Only while no request holds any.
        """
        assert not self._leases, "requests hold blocks"
        for group, count in zip(self.groups, num_blocks, strict=True):
            group.resize(count)
        self.config = replace(self.config, num_blocks=tuple(num_blocks))
        self._refused = None

    def table(self, request: Request, group: int) -> list[int]:
        """A copy of a request's block table, empty if it holds none."""
        lease = self._leases.get(request)
        return self.groups[group].table(lease.holder) if lease else []

    def check(self) -> None:
        """Assert that every group's units are accounted for."""
        for group in self.groups:
            group.check()

    def _lacks(self, demands: Sequence[int]) -> bool:
        """Whether a group has fewer free units than demanded."""
        return any(map(gt, demands, (group.num_free for group in self.groups)))

    def _begin(self, request: Request, hit: int) -> None:
        self._leases.begin(request, findable=self.config.enable_prefix_caching)
        request.publish_at = (hit // self.block_size + 1) * self.block_size
        if self.records is not None:
            self.records.begin(request, request.block_hashes[: hit // self.block_size])
        self.stats.count(request, hit)

    def _note_fork(self, group: int, source: int, target: int) -> None:
        forks = self._forks.setdefault(group, Forks(group, [], []))
        forks.sources.append(source)
        forks.targets.append(target)

    def _release(self, holder: int) -> None:
        for group in self.groups:
            group.free(holder)


@dataclass
class PrefixStats:
    """Tokens of admitted requests that were looked up, and those found on the device: what was
    loaded from outside of it counts there alone, as in vLLM. Preempted requests count apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def count(self, request: Request, hit: int) -> None:
        if request.wire.skip_reading_prefix_cache:
            return
        if request.num_preemptions:
            self.preempted_queries += request.num_known
            self.preempted_hits += hit
        else:
            self.queries += request.num_known
            self.hits += max(hit - max(request.num_external_tokens, 0), 0)
