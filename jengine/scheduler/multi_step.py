"""Multi-step decode: plans whose decodes run several times before the host reads their tokens.

In: a PlanBuilder. Out: how often its decodes run, and blocks for all runs. It never preempts: the
number is bounded by the shortest answer still possible and by the free blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from jengine.counts import NO_DRAFT_COUNTS, DraftCounts
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import Request
from jengine.scheduler.flights import Flight
from jengine.scheduler.plan_builder import PlanBuilder


class MultiStepDecode:
    """Multi-step decode: up to `most` decode iterations per plan."""

    def __init__(self, most: int, cache: CacheCoordinator) -> None:
        self.most = most
        self._cache = cache

    def lengthen(self, builder: PlanBuilder, num_waiting: int) -> None:
        """Maximise iterations; one while a request waits or a prefill chunk runs."""
        if self.most == 1 or num_waiting or builder.chunks or builder.preempted:
            return
        repeats = min((self._room(request) for request in builder.decodes), default=1)
        while repeats > 1 and not self._cache.has_room(builder.decodes, repeats):
            repeats //= 2
        if repeats > 1:
            self._lengthen(builder, repeats)

    def settle(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        raise AssertionError(f"step {flight.plan.step} has drafts, and none were planned")

    @property
    def counts(self) -> DraftCounts:
        """Always zero: no drafts."""
        return NO_DRAFT_COUNTS

    def _room(self, request: Request) -> int:
        """Tokens that a request may still decode."""
        # A run would overwrite what the one before it captured, or need a mask of its own.
        if request.wire.taps or request.reads_each_token:
            return 1
        return min(self.most, request.cap - 1 - request.num_computed)

    def _lengthen(self, builder: PlanBuilder, repeats: int) -> None:
        builder.repeats = repeats
        for request in builder.decodes:
            blocks = self._cache.allocate(request, repeats)
            assert blocks is not None, "the cache had room for all of these a moment ago"
            builder.new_blocks += blocks
