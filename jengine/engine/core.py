"""The heart: take up what was queued, schedule, submit, commit.

Overlap is a value carried from one call to the next: the next step is queued before the tokens of
the last one are read. Must not know text, devices, or who is waiting for the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from jengine.errors import EngineDead, RequestError, UnexpectedCompile
from jengine.executor.protocol import Executor, PendingOutput, WorkerHealth
from jengine.outputs import Counts, TokenDelta
from jengine.plan import Plan
from jengine.request import WireRequest
from jengine.scheduler.refusal import refuse_impossible
from jengine.scheduler.scheduler import Scheduler


class Arrival(NamedTuple):
    """A request that no step has taken up yet."""

    wire: WireRequest
    block_hashes: Sequence[bytes]


class EngineCore:
    """Requests in, token deltas out. `depth` plans may be in flight while one is read.

    `add` and `abort` only append to an inbox, so they are safe at any moment, also when the garbage
    collector closes an abandoned stream inside `schedule`. Everything else is called between steps.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, depth: int) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.depth = depth
        self.in_flight: deque[tuple[Plan, PendingOutput]] = deque()
        self.is_due = False  # whether the oldest step in flight must be read before the next one
        self.undelivered: list[TokenDelta] = []  # deltas that no step has returned yet
        self.failure: BaseException | None = None
        self._inbox: deque[Arrival | str] = deque()  # a string is the id of a request to abort
        self._arriving: set[str] = set()  # ids of the requests in the inbox

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to return."""
        return self.scheduler.has_unfinished or bool(self._inbox or self.undelivered)

    def check(self, wire: WireRequest) -> None:
        """Raise a RequestError if no schedule could ever answer a request."""
        refuse_impossible(wire, self.scheduler.config, self.scheduler.cache)

    def add(self, wire: WireRequest, block_hashes: Sequence[bytes] = ()) -> None:
        """Queue a request, with the hashes of its first blocks as far as they are known."""
        self.check_alive()
        self.check(wire)
        name = wire.request_id
        if name in self._arriving or self.scheduler.knows(name):
            raise RequestError(f"request_id={name!r} is being answered already.")
        self._arriving.add(name)
        self._inbox.append(Arrival(wire, block_hashes))

    def abort(self, request_id: str) -> None:
        """Queue the end of a request. Unless it ends before, a last delta says "abort"."""
        self._inbox.append(request_id)

    def take_up(self) -> None:
        """Hand what was queued to the scheduler."""
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, Arrival):
                self.scheduler.add(*item)
                self._arriving.discard(item.wire.request_id)
            elif (ended := self.scheduler.abort(item)) is not None:
                self.undelivered.append(ended)

    def step(self, read: bool = True) -> list[TokenDelta]:
        """Queue the next step, then read the one before it, which `read=False` leaves undone."""
        self.check_alive()
        with self._failing():
            self.take_up()
            plan = self.scheduler.schedule()
            if plan:
                self.in_flight.append((plan, self.executor.submit(plan)))
            self.is_due = bool(self.in_flight) and (not plan or len(self.in_flight) > self.depth)
            if self.is_due and read:
                done, pending = self.in_flight.popleft()
                self.undelivered += self.scheduler.commit(done, pending.result())
        deltas, self.undelivered = self.undelivered, []
        return deltas

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A step that fails ends the engine; one that never ran ends its requests."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, UnexpectedCompile):
                self.failure = error
                raise EngineDead(f"a step failed: {type(error).__name__}: {error}") from error
            # The plan never ran, so what was scheduled with it is not in the cache. The next step
            # returns the last deltas of all requests. (A first Ctrl-C waits for the end of the
            # step; a second one, or what another signal handler raises, arrives here.)
            self.undelivered += self.reset()
            raise

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced."""
        return self.scheduler.cache.weights_version

    def update_weights(self, leaves: Any) -> int:
        """Use other parameters from the next step on. Returns the new version of the weights.

        The version is in the root of every prefix hash, so nothing cached before is found again.
        """
        self.check_alive()
        self.take_up()
        self.executor.update_weights(leaves)
        version = self.weights_version + 1
        self.scheduler.set_weights_version(version)
        return version

    def reset(self) -> list[TokenDelta]:
        """Abort every request and forget what is in flight and in the prefix cache."""
        for _, pending in self.in_flight:
            pending.result()  # its blocks are free only once it has run
        self.in_flight.clear()
        self.take_up()
        deltas = self.scheduler.reset()
        self.scheduler.reset_prefix_cache()
        return deltas

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes. False if requests are using the cache."""
        self.take_up()
        return self.scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def counts(self) -> Counts:
        """What the scheduler is doing."""
        self.take_up()
        scheduler, cache = self.scheduler, self.scheduler.cache
        return Counts(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            preemptions=scheduler.num_preemptions,
            cache_usage=cache.usage,
            prefix_queries=cache.stats.queries,
            prefix_hits=cache.stats.hits,
        )

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """What a call returns in every process that runs steps, by rank."""
        self.check_alive()
        return self.executor.call_workers(method, arguments)

    def health(self) -> list[WorkerHealth]:
        """What is known of every process that runs steps."""
        self.check_alive()
        return self.executor.health()

    def probe(self) -> None:
        """Run a step with nothing in it, to its end. Only while no request runs."""
        self.check_alive()
        self.take_up()
        with self._failing():
            self.executor.submit(self.scheduler.empty_plan()).result()

    def check_alive(self) -> None:
        """Raise EngineDead if a step has failed before."""
        if self.failure is not None:
            raise EngineDead("this engine has stopped; create a new one.") from self.failure

    def shutdown(self) -> None:
        """Abort everything and give the device memory back."""
        self.in_flight.clear()
        self._inbox.clear()
        self.undelivered.clear()
        self.scheduler.reset()
        self.executor.shutdown()
        self.failure = self.failure or EngineDead("this engine was shut down.")
