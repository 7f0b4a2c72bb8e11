"""What else must be ready before a waiting request may run: gates, asked one by one.

Rows, the sampler's pool, budget and the KV cache are the scheduler's own limits, for which all
requests wait in line. A request that a gate keeps back lets those behind it pass, and every step
asks again: a gate is for a few requests, a limit may hold up thousands.
"""

from __future__ import annotations

from typing import Protocol

from jengine.request import Request
from jengine.scheduler.flights import Flights


class AdmissionGate(Protocol):
    """One more thing that must be ready."""

    def is_open(self, request: Request) -> bool:
        """Whether this request may run now. Asked at every step while it waits."""


class NotInFlight:
    """A preempted request waits until the steps that still carry tokens of it are committed."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights

    def is_open(self, request: Request) -> bool:
        return request.last_step <= self._flights.committed
