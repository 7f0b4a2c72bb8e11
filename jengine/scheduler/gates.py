"""What else must be ready before a waiting request may run: gates, asked one by one.

Rows, the sampler's pool, budget and the KV cache are the scheduler's own limits, for which all
requests wait in line. A request that a gate keeps back lets those behind it pass, and every step
asks again: a gate is for a few requests, a limit may hold up thousands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from jengine.request import Request
from jengine.scheduler.flights import Flights
from jengine.structured_outputs import GrammarSpec

# Seconds that a gate may wait for a grammar, and between the ends of two such waits.
GRAMMAR_WAIT, WAIT_PAUSE = 1e-3, 2e-4


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


class GrammarReady:
    """A request waits until its grammar is compiled, or has failed to be.

    `ready_within` begins to compile a grammar that is new, waits up to so many seconds, and says
    whether the compiler is done with it. Waiting a millisecond once per step keeps an engine that
    has nothing else to run from asking all the time.
    """

    def __init__(self, ready_within: Callable[[GrammarSpec, float], bool]) -> None:
        self._ready_within = ready_within
        self._waited = 0.0

    def is_open(self, request: Request) -> bool:
        grammar = request.wire.sampling.grammar
        if grammar is None or self._ready_within(grammar, 0.0):
            return True
        if time.monotonic() - self._waited < WAIT_PAUSE:
            return False
        is_ready = self._ready_within(grammar, GRAMMAR_WAIT)
        self._waited = time.monotonic()
        return is_ready
