"""Isolates failures of user callbacks: ends the requests whose own functions raised, and no others.

In: plans, whose new rows name the sets of functions that they use. Out: the steps' outputs, with
refusals for the rows of a set that has raised since its step was queued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from jengine.executor.protocol import PendingOutput
from jengine.executor.read_step import ReadStep
from jengine.outputs import REFUSED, Refusal, StepOutput
from jengine.plan import NewRow, Plan
from jengine.sampling.raised import Raised


@dataclass(eq=False)
class Owner:
    """A running request that has functions of its own."""

    sets: tuple[Raised, ...]
    problem: str | None = None  # told with its next token: a chunk of its prompt may have none


class Use(NamedTuple):
    """One request with its own functions in one step."""

    owner: Owner
    item: int | None  # of the output; None: the step samples no token for it
    before: tuple[int, ...]  # errors of its sets when the step was queued


class OwnFunctions:
    """Tracks, by row, the running requests that have functions of their own."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}  # by row

    def uses(self, plan: Plan, sets_of: Callable[[NewRow], Sequence[Raised]]) -> list[Use]:
        """The entries of a plan, about to be queued, whose requests have functions of their own."""
        for new in plan.new_rows:
            self._owners.pop(new.row, None)
            if sets := sets_of(new):
                self._owners[new.row] = Owner(tuple(sets))
        return list(self._found(plan)) if self._owners else []

    def _found(self, plan: Plan) -> Iterator[Use]:
        items = 0
        for row, wanted in zip(
            plan.entries.rows.tolist(), plan.entries.wants_tokens.tolist(), strict=True
        ):
            if owner := self._owners.get(row):
                before = tuple(one.count for one in owner.sets)
                yield Use(owner, items if wanted else None, before)
            items += wanted


def watched(uses: Sequence[Use], step: PendingOutput) -> PendingOutput:
    """Wrap a queued step so that its output refuses requests whose functions raised."""
    return ReadStep(step, partial(told, uses))


def told(uses: Sequence[Use], step: PendingOutput) -> StepOutput:
    """Read the step and replace the tokens of requests whose functions raised by refusals."""
    output = step.result()
    refusals: dict[int, Refusal] = {}
    for owner, item, before in uses:
        for one, count in zip(owner.sets, before, strict=True):
            if one.count > count:
                owner.problem = one.last
        if owner.problem is not None and item is not None:
            refusals[item] = Refusal(
                f"A callback in a function of this request (intervene=, logits_processors=) has "
                f"raised {owner.problem}. Other requests are not affected.",
                by_request=True,
            )
    if not refusals:
        return output
    tokens = np.array(output.tokens)  # the original may be read-only
    tokens[list(refusals)] = REFUSED
    return output._replace(tokens=tokens, refusals={**output.refusals, **refusals})
