"""What lets the decodes of a plan run more than one token: several runs of the step, or drafts.

In: a plan whose requests are chosen. Out: more tokens for its decodes, with blocks for them. It
never preempts: it takes free blocks and what is left of the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jengine.counts import DraftCounts
from jengine.scheduler.flights import Flight
from jengine.scheduler.plan_builder import PlanBuilder


class Lengthening(Protocol):
    """One way to do so."""

    def lengthen(self, builder: PlanBuilder, num_waiting: int) -> None:
        """Let the decodes run more tokens; so many requests wait for a row."""

    def settle(self, flight: Flight, tokens: Sequence[Sequence[int]]) -> None:
        """A step with drafts was read, and gave each entry that wants tokens these."""

    @property
    def counts(self) -> DraftCounts:
        """Drafts of all steps that were read."""
