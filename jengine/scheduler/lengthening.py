"""What lets the decodes of a plan run more than one token: several runs of the step, or drafts.

In: a plan whose requests are chosen. Out: more tokens for its decodes, with blocks for them. It
never preempts: it takes free blocks and what is left of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jengine.config import ScheduleConfig
from jengine.counts import DraftCounts
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.scheduler.drafting import Drafting
from jengine.scheduler.flights import Flight
from jengine.scheduler.guesses import CheckDrafts, DeviceGuesses, HostGuesses
from jengine.scheduler.multi_step import MultiStepDecode
from jengine.scheduler.plan_builder import PlanBuilder
from jengine.speculative.choice import host_proposer


class Lengthening(Protocol):
    """A strategy that lets decodes run more than one token per plan."""

    def lengthen(self, builder: PlanBuilder, num_waiting: int) -> None:
        """Extend the decodes of a plan; `num_waiting` requests wait for a row."""

    def settle(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        """Account for the tokens of a committed step."""

    @property
    def counts(self) -> DraftCounts:
        """Drafted and accepted tokens so far."""


def lengthening_of(
    config: ScheduleConfig, cache: CacheCoordinator, check: CheckDrafts | None = None
) -> Lengthening:
    """Choose the strategy by the configuration. `check` trims drafts by grammar."""
    if config.speculative is None:
        return MultiStepDecode(config.num_scheduler_steps, cache)
    method = config.speculative
    source = (
        DeviceGuesses(check, has_cache=method.has_cache)
        if method.on_device
        else HostGuesses(host_proposer(method), check)
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
        guess_cost=method.guess_cost,
    )
