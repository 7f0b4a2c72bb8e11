"""Plans in flight: made, and not yet committed."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from jengine.plan import Plan
from jengine.request import Request


class Flight(NamedTuple):
    """A plan in flight, and the request behind each of its entries."""

    plan: Plan
    requests: list[Request]
    weights_version: int


class Flights:
    """Steps are numbered: those before `next_step` were planned, those to `committed` are done."""

    def __init__(self) -> None:
        self.next_step = 0
        self.committed = -1
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def number(self) -> int:
        """The number of a new step."""
        self.next_step += 1
        return self.next_step - 1

    def begin(self, flight: Flight) -> None:
        """A plan with the newest number is about to be submitted."""
        self._flights.append(flight)

    def end(self, plan: Plan) -> Flight | None:
        """The flight of a plan whose output is there; None if `forget` was called meanwhile."""
        if not self._flights or self._flights[0].plan.step != plan.step:
            assert plan.step <= self.committed, f"step {plan.step} is committed out of order"
            return None
        self.committed = plan.step
        return self._flights.popleft()

    def forget(self) -> None:
        """Ignore the outputs of all plans in flight."""
        self._flights.clear()
        self.committed = self.next_step - 1
