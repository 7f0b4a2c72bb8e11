"""Jumps: several decode steps in one plan, where single steps would do exactly the same.

In: a PlanBuilder. Out: how often its decodes run. No request ends before the last run, none can be
admitted meanwhile, and no other event falls between two runs, so only the host's work is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jengine.counts import NO_DRAFT_COUNTS, DraftCounts
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.scheduler.flights import Flight
from jengine.scheduler.plan_builder import PlanBuilder

# Blocks that decodes will need are taken at the beginning of a jump: no more than so many tokens.
LONGEST = 64
# (rows, tokens they read together, most runs, whether requests wait) -> runs until something else
# may happen.
Horizon = Callable[[int, int, int, bool], int]


class Jumps:
    """Runs several decode steps in one plan, with the outcome of single steps."""

    def __init__(self, cache: CacheCoordinator, horizon: Horizon) -> None:
        self._cache = cache
        self._horizon = horizon

    def lengthen(self, builder: PlanBuilder, num_waiting: int) -> None:
        """Choose the most runs whose outcome equals that of single steps."""
        decodes = builder.decodes
        if builder.chunks or builder.preempted or not decodes:
            return
        most = min(request.cap - 1 - request.num_computed for request in decodes)
        most = min(most, LONGEST)
        if most < 2:
            return
        context = sum(request.num_computed for request in decodes) + len(decodes)
        repeats = self._horizon(len(decodes), context, most, num_waiting > 0)
        if repeats < 2 or not self._cache.has_room(decodes, repeats):
            return
        builder.repeats = repeats
        for request in decodes:
            blocks = self._cache.allocate(request, repeats)
            assert blocks is not None, "the cache had room for all of these a moment ago"
            builder.new_blocks += blocks

    def settle(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        raise AssertionError(f"step {flight.plan.step} has drafts, and none were planned")

    @property
    def counts(self) -> DraftCounts:
        """Always zero: no drafts."""
        return NO_DRAFT_COUNTS
