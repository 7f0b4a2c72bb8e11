"""What else must be ready before a waiting request may run: gates, asked one by one.

Rows, the sampler's pool, budget and the KV cache are the scheduler's own limits, for which all
requests wait in line. A request that a gate keeps back is parked, and lets those behind it pass.

To add a gate, write a class with one method, `awaited(request)`: None if the request may run, or
else a **key**, any hashable that names what it waits for: best a NamedTuple of its own, equal for
all requests that wait for the same. The scheduler makes its gates itself, by calling each of
`gates` with its `wake`; so give it the class, or a `partial` of it. Once what a key names may be
there, the gate calls `wake(key)`, from any thread: the first request of that key is then asked
again, and those behind it as long as they pass. A wake-up for nothing does no harm; one that never
comes lets requests wait for ever, so whatever begins the work must call it at each of its ends,
failures included. Where no event tells, a `Polled` key is asked at every step. A gate that raises a
RequestError ends this request with it, and no other. A parked request that is aborted leaves its
lane at once, and the gate is not told: gates keep nothing of requests. They are asked in the thread
of the steps, so an answer must take microseconds.
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
    """Waits while a planned step of another request writes more of this prefix than can be found
    yet.

    Only for states of recurrent layers, which later steps alone can read.
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
