"""Ends requests whose own functions have raised in a step, and no others.

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
    """A request in its row."""

    sets: tuple[Raised, ...]
    problem: str | None = None  # told with its next token: a chunk of its prompt may have none


class Use(NamedTuple):
    """An owner in a step."""

    owner: Owner
    item: int | None  # of the output; None: the step samples no token for it
    before: tuple[int, ...]  # errors of its sets when the step was queued


class OwnFunctions:
    """The rows that use functions of their own."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}  # by row

    def uses(self, plan: Plan, sets_of: Callable[[NewRow], Sequence[Raised]]) -> list[Use]:
        """Those in a plan that is about to be queued."""
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
    """The queued step, whose output tells what has been raised."""
    return ReadStep(step, partial(told, uses))


def told(uses: Sequence[Use], step: PendingOutput) -> StepOutput:
    """The step's output, in which the tokens of owners whose functions have raised are refused."""
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
