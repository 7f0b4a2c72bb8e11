"""Admission gates: conditions besides rows, budget and blocks that a waiting request must meet.

Requests that lack rows, sampler rows, budget or KV blocks wait in line. One held back by a gate is
parked and lets others pass.

To add a gate, write a class with one method, `awaited(request)`: None to admit, else a **key**, a
hashable that names what the request waits for: best a NamedTuple type per gate, with equal keys for
requests that wait for the same thing. Pass the scheduler the class, or a `partial` of it, in
`gates`: it is called with the scheduler's `wake`. When the condition may hold, call `wake(key)`,
from any thread: the first request of that key is asked again, and then those behind it for as long
as they pass. A spurious wake-up is harmless; a missing one leaves requests waiting forever, so call
it on every outcome of the work, failures included. If no event announces the condition, return a
`Polled` key, which is checked at every step. A RequestError raised by a gate ends that request
only. Gates must keep no state per request: a parked request that is aborted leaves without notice.
They run in the step thread, so an answer must take microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import Request
from jengine.scheduler.encoder_cache import EncoderCache
from jengine.scheduler.flights import Flights
from jengine.scheduler.queue import Polled
from jengine.scheduler.transfers import BlockTransfers
from jengine.structured_outputs import GrammarSpec

Wake = Callable[[Hashable], None]


class AdmissionGate(Protocol):
    """A condition for admission beyond rows, budget and blocks."""

    def awaited(self, request: Request) -> Hashable | None:
        """Key that this request waits for, or None to admit it."""


# Called by each scheduler with its own `wake`.
MakeGate = Callable[[Wake], AdmissionGate]


def first_awaited(gates: Sequence[AdmissionGate], request: Request) -> Hashable | None:
    """Key of the first closed gate, or None if all are open."""
    for gate in gates:
        key = gate.awaited(request)
        if key is not None:
            return key
    return None


class StepKey(NamedTuple):
    """Key: the commit of this step."""

    step: int


class NotInFlight:
    """A preempted request waits until the steps that still carry its tokens are committed."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights

    def awaited(self, request: Request) -> Hashable | None:
        step = request.last_step
        return None if step <= self._flights.committed else Polled(StepKey(step))


class ImagesFit:
    """Waits until the image embeddings fit on the device, in order of arrival."""

    def __init__(self, images: EncoderCache, cache: CacheCoordinator) -> None:
        self._images = images
        self._cache = cache

    def awaited(self, request: Request) -> Hashable | None:
        has_room = self._images.have_room(request, self._cache.weights_version)
        return None if has_room else Polled(ImagesFit)


class PrefixWritten:
    """Waits while a planned step of another request writes more of this prefix than is findable
    yet.

    Only for recurrent layers, whose states can be read by later steps only.
    """

    def __init__(self, cache: CacheCoordinator) -> None:
        self._cache = cache

    def awaited(self, request: Request) -> Hashable | None:
        writer = self._cache.prefix_writer(request)
        return None if writer is None else Polled((PrefixWritten, writer))


class BlocksLoaded:
    """Waits until blocks that the device lacks are loaded from the host or a connector."""

    def __init__(self, transfers: BlockTransfers, has_row: Callable[[Request], bool]) -> None:
        self._transfers = transfers
        self._has_row = has_row

    def awaited(self, request: Request) -> Hashable | None:
        return self._transfers.awaited(request) if self._has_row(request) else None


class CompilationFuture(Protocol):
    """Future of a grammar's compilation."""

    @property
    def is_over(self) -> bool:
        """Whether it has succeeded, failed or timed out."""

    @property
    def has_begun(self) -> bool:
        """Whether the compiler has started on it."""

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell` when it starts and when it ends, immediately for what has happened
        already."""


class GrammarCompiled(NamedTuple):
    """Key: the compilation of this grammar, by its source."""

    grammar: GrammarSpec


class GrammarReady:
    """Waits until the grammar is compiled or has failed. `begin` starts a compilation.

    One that has started is polled at every step, since it may time out.
    """

    def __init__(self, begin: Callable[[GrammarSpec], CompilationFuture], wake: Wake) -> None:
        self._begin = begin
        self._wake = wake
        self._awaited: set[GrammarSpec] = set()

    def awaited(self, request: Request) -> Hashable | None:
        grammar = request.wire.sampling.grammar
        if grammar is None:
            return None
        job = self._begin(grammar)
        if job.is_over:
            return None
        key = GrammarCompiled(grammar.source)
        if job.has_begun:
            return Polled(key)
        if key.grammar not in self._awaited:
            self._awaited.add(key.grammar)
            job.listen(lambda: self._tell(key))
        return key

    def _tell(self, key: GrammarCompiled) -> None:
        self._awaited.discard(key.grammar)
        self._wake(key)
        self._wake(Polled(key))
