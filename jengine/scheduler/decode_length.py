"""Extends the decodes of a plan to several tokens: multi-step decode, or drafts.

In: a plan whose requests are chosen. Out: more tokens for its decodes, with blocks for them. Never
preempts: uses free blocks and the remaining budget only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jengine.config import ScheduleConfig
from jengine.counts import NO_DRAFT_COUNTS, DraftCounts
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import Request
from jengine.scheduler.draft_sources import CheckDrafts, DeviceDrafts, HostDrafts
from jengine.scheduler.drafting import Drafting
from jengine.scheduler.flights import Flight
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.speculative.choice import host_proposer


class DecodeLength(Protocol):
    """A strategy that lets decodes run more than one token per plan."""

    def lengthen(self, builder: PlanBuilder, num_waiting: int) -> None:
        """Extend the decodes of a plan; `num_waiting` requests wait for a row."""

    def settle(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        """Account for the tokens of a committed step."""

    @property
    def counts(self) -> DraftCounts:
        """Drafted and accepted tokens so far."""


def decode_length_of(
    config: ScheduleConfig, cache: CacheCoordinator, check: CheckDrafts | None = None
) -> DecodeLength:
    """Choose the strategy by the configuration. `check` trims drafts by grammar."""
    if config.speculative is None:
        return MultiStepDecode(config.num_scheduler_steps, cache)
    method = config.speculative
    source = (
        DeviceDrafts(check, has_cache=method.has_cache)
        if method.on_device
        else HostDrafts(host_proposer(method), check)
    )
    return Drafting(
        source,
        cache,
        most=config.most_drafts,
        most_rows=config.max_decode_rows,
        mixed_rows=config.max_num_seqs,
        sizes=config.decode_sizes,
        adaptive=method.adaptive,
        free_tokens=config.free_tokens,
        draft_cost=method.draft_cost,
    )


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
        # Captures would be overwritten by the next run; grammars and budgets need a mask per token.
        if request.wire.taps or request.reads_each_token:
            return 1
        return min(self.most, request.cap - 1 - request.num_computed)

    def _lengthen(self, builder: PlanBuilder, repeats: int) -> None:
        builder.repeats = repeats
        for request in builder.decodes:
            blocks = self._cache.allocate(request, repeats)
            assert blocks is not None, "the cache had room for all of these a moment ago"
            builder.new_blocks += blocks
