"""What else must be ready before a waiting request may run: gates, asked one by one.

Rows, the sampler's pool, budget and the KV cache are the scheduler's own limits, for which all
requests wait in line. A request that a gate keeps back lets those behind it pass, and every step
asks again: a gate is for a few requests, a limit may hold up thousands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import Request
from jengine.scheduler.adapter_slots import AdapterSlots
from jengine.scheduler.encoder_cache import EncoderCache
from jengine.scheduler.flights import Flights
from jengine.scheduler.transfers import BlockTransfers
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


class AdapterFits:
    """A request waits until the step has a slot for its adapter."""

    def __init__(self, slots: AdapterSlots) -> None:
        self._slots = slots

    def is_open(self, request: Request) -> bool:
        return self._slots.have_room(request)


class ImagesFit:
    """A request waits until the embeddings of its images fit on the device."""

    def __init__(self, images: EncoderCache, cache: CacheCoordinator) -> None:
        self._images = images
        self._cache = cache

    def is_open(self, request: Request) -> bool:
        return self._images.have_room(request, self._cache.weights_version)


class PrefixWritten:
    """A request waits while a step that is planned writes more of its prefix than can be found:
    states of recurrent layers, which only later steps read."""

    def __init__(self, cache: CacheCoordinator) -> None:
        self._cache = cache

    def is_open(self, request: Request) -> bool:
        return not self._cache.prefix_is_coming(request)


class BlocksLoaded:
    """A request that could get a row waits for the blocks that it lacks on the device and can get
    from elsewhere."""

    def __init__(self, transfers: BlockTransfers, has_row: Callable[[Request], bool]) -> None:
        self._transfers = transfers
        self._has_row = has_row

    def is_open(self, request: Request) -> bool:
        return not self._has_row(request) or self._transfers.is_open(request)


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
