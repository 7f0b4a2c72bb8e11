"""Plans in flight: made, and not yet committed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from jengine.plan import Plan
from jengine.request import Request


class Flight(NamedTuple):
    """A submitted plan with the request of each entry."""

    plan: Plan
    requests: list[Request]
    weights_version: int


class Flights:
    """Plans in flight. Steps are numbered: those before `next_step` are planned, those to
    `committed` committed."""

    def __init__(self) -> None:
        self.next_step = 0
        self.committed = -1
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def begin(self, flight: Flight) -> None:
        """Register a plan that is about to be submitted."""
        self._flights.append(flight)
        self.next_step = flight.plan.step + 1

    def end(self, plan: Plan) -> Flight | None:
        """Take out the flight of a plan whose output has arrived. None if it was forgotten."""
        if not self._flights or self._flights[0].plan.step != plan.step:
            assert plan.step <= self.committed, f"step {plan.step} is committed out of order"
            return None
        self.committed = plan.step
        return self._flights.popleft()

    def forget(self) -> None:
        """Drop all plans in flight; their outputs will be ignored."""
        self._flights.clear()
        self.committed = self.next_step - 1
