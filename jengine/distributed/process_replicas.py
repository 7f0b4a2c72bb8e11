"""Several engine cores in processes of their own, as one client: data parallelism over processes.

In: requests. Out: the token deltas of all cores. Each request goes to the core that holds its
prefix, then to the least loaded one, by what the cores tell of their caches and queues. A core that
dies takes its own requests only. Must not know devices, or who started the cores.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from jengine.counts import Counts, together
from jengine.distributed.router import Placed, Router
from jengine.engine.core_state import CoreState
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.errors import EngineDead
from jengine.executor.protocol import WorkerHealth
from jengine.kvcache.contents import Contents
from jengine.outputs import TokenDelta
from jengine.request import Request, WireRequest

T = TypeVar("T")


class ProcessReplicas:
    """An EngineClient over several, which share a mailbox."""

    def __init__(
        self, cores: Sequence[ProcessClient], mailbox: Mailbox, block_size: int, *, by_urgency: bool
    ) -> None:
        """`by_urgency`: requests that are less urgent than a new one do not delay it."""
        self.cores = cores
        self._mailbox = mailbox
        self._block_size = block_size
        self._by_urgency = by_urgency
        self._router = Router(len(cores), block_size)
        self._lock = threading.Lock()  # around the router
        self._dead: dict[int, EngineDead] = {}  # by core, in the order of their deaths
        self._told: list[Callable[[EngineDead], None]] = [mailbox.fail]
        for index, core in enumerate(cores):
            core.when_dead(lambda error, index=index: self._lose(index, error))

    # --- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `outputs` has something to wait for."""
        return self._mailbox.has_work

    def add(self, wire: WireRequest) -> None:
        """Queue a request in one of the cores that live."""
        length = len(wire.prompt_token_ids)
        hashes = self._hashes(wire)
        while True:
            self.check_alive()
            with self._lock:
                chosen = self._choose(wire, hashes)
                core = self.cores[chosen]
                core.check(wire)
                self._router.enter(wire.request_id, Placed(chosen, length, hashes, wire.priority))
            try:
                core.add(wire)
            except EngineDead:
                if not self._forget(wire.request_id):
                    return  # its end was told with the core's
            except BaseException:
                self._forget(wire.request_id)
                raise
            else:
                return

    def abort(self, request_id: str) -> None:
        """Queue the end of a request. Takes no lock: a finalizer may call it at any moment."""
        chosen = self._router.replica_of(request_id)
        if chosen is not None:
            self.cores[chosen].abort(request_id)

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        """Wait for new tokens of any core and return them."""
        self.cores[0].check_process()
        deltas = self._mailbox.take(wait)
        with self._lock:
            for delta in deltas:
                core = self._router.replica_of(delta.request_id)
                if delta.times is not None and core is not None:
                    delta.times = delta.times.of_engine(core)
                self._router.note(delta)
        return deltas

    def _hashes(self, wire: WireRequest) -> list[bytes]:
        """Hashes of the full blocks of a prompt, but for its last token, which always runs."""
        if wire.skip_reading_prefix_cache:
            return []
        length = len(wire.prompt_token_ids)
        contents = Contents(self._block_size, self.weights_version)
        return contents.of(Request(wire, length, 0), (length - 1) // self._block_size)

    def _choose(self, wire: WireRequest, hashes: list[bytes]) -> int:
        living = self._living()
        found = [self.cores[i].contents.prefix(hashes) * self._block_size for i in living]
        loads = self._router.loads_for(wire.priority if self._by_urgency else None)
        loads = [load + more for load, more in zip(loads, self._others(), strict=True)]
        return self._router.best_of(living, found, hashes, loads)

    def _others(self) -> list[int]:
        """Tokens of other fronts' requests in each core, as its queue lengths tell: each request is
        taken for as long as this front's are on average."""
        own = Counter(placed.replica for placed in self._router.requests.values())
        tokens = sum(self._router.loads) // max(own.total(), 1) or self._block_size
        states = [core.state().counts for core in self.cores]
        there = [counts.running + counts.waiting for counts in states]
        return [max(count - own[i], 0) * tokens for i, count in enumerate(there)]

    def _forget(self, request_id: str) -> bool:
        """Take a request out of the router. False if it was lost with its core."""
        with self._lock:
            known = request_id in self._router
            if known:
                self._router.leave(request_id)
            return known

    # --- death -----------------------------------------------------------------------------------

    def _living(self) -> list[int]:
        return [i for i in range(len(self.cores)) if i not in self._dead]

    def _lose(self, index: int, error: EngineDead) -> None:
        """A core has died: its requests end with an error, the others go on."""
        with self._lock:
            self._dead[index] = error
            lost = [
                name for name, placed in self._router.requests.items() if placed.replica == index
            ]
            for name in lost:
                self._router.leave(name)
            told = list(self._told) if not self._living() else []
        message = f"core {index} of {len(self.cores)} has died: {error} Send the request again."
        self._mailbox.deliver(
            [
                TokenDelta(request_id=name, token_ids=[], finish_reason="error", message=message)
                for name in lost
            ]
        )
        for tell in told:
            tell(error)

    def check_alive(self) -> None:
        """Raise EngineDead if no core lives."""
        self.cores[0].check_process()
        if not self._living():
            first = next(iter(self._dead.values()))
            raise EngineDead(str(first)) from first

    def when_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """Have a function called when the last core has died."""
        with self._lock:
            self._told.append(tell)
            error = None if self._living() else next(iter(self._dead.values()))
        if error is not None:
            tell(error)

    def shutdown(self) -> None:
        """End all cores. Twice is harmless; in a forked child it does nothing."""
        self._mailbox.fail(EngineDead("the engine was shut down."))
        for core in self.cores:
            core.shutdown()

    # --- questions -------------------------------------------------------------------------------

    def _ask(self, question: Callable[[ProcessClient], T]) -> list[T]:
        """The answers of all cores that live, without those that die meanwhile."""
        answers = []
        for core in [self.cores[i] for i in self._living()]:
            try:
                answers.append(question(core))
            except EngineDead:
                if core.is_alive:
                    raise
        self.check_alive()
        return answers

    def settle(self) -> None:
        """Return when everything queued so far has reached the schedulers."""
        self._ask(ProcessClient.settle)

    def stats(self) -> Counts:
        """The counts of all cores together, and of each."""
        found = dict(self._ask(lambda core: (self.cores.index(core), core.stats())))
        return together([found.get(i) or self._last_counts(i) for i in range(len(self.cores))])

    def state(self) -> CoreState:
        """What the cores said last. The age is the oldest, and the step in progress the longest."""
        living = [self.cores[i].state() for i in self._living()]
        every = [core.state() for core in self.cores]
        return CoreState(
            counts=together([self._last_counts(i) for i in range(len(self.cores))]),
            steps=sum(one.steps for one in every),
            stepping=max((one.stepping for one in living), default=0.0),
            paused=any(one.paused for one in living),
            dropped_frames=sum(one.dropped_frames for one in every),
            age=max((one.age for one in living), default=0.0),
        )

    def _last_counts(self, index: int) -> Counts:
        """A core's counts; one that has died runs nothing."""
        counts = self.cores[index].state().counts
        if index in self._dead:
            return msgspec.structs.replace(counts, running=0, waiting=0, cache_usage=0.0)
        return counts

    def call(self, method: str, arguments: bytes) -> list[bytes]:
        """The results of a call in every core that lives, one after the other."""
        return list(chain.from_iterable(self._ask(lambda core: core.call(method, arguments))))

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes in every core. False if requests are using the cache of one."""
        return all(self._ask(lambda core: core.reset_prefix_cache(reset_running_requests)))

    def health(self) -> list[WorkerHealth]:
        """The processes of all cores; those of a core that has died say so."""
        told = dict(self._ask(lambda core: (self.cores.index(core), core.health())))
        found: list[WorkerHealth] = []
        for index, core in enumerate(self.cores):
            state = core.state()
            dead = WorkerHealth(0, f"dead: {self._dead.get(index)}", state.steps, state.age)
            for one in told.get(index, [dead]):
                where = f"core {index}, {one.where}"
                found.append(msgspec.structs.replace(one, rank=len(found), where=where))
        return found

    def probe(self) -> None:
        """Run a step with nothing in it in every core. Only while no request runs."""
        self._ask(ProcessClient.probe)

    def pause(self) -> None:
        """Run no more steps in any core."""
        self._ask(ProcessClient.pause)

    def resume(self) -> None:
        """Run steps again in every core."""
        self._ask(ProcessClient.resume)

    def dump_stacks(self) -> None:
        """Have every core write its threads' stacks to stderr."""
        for core in self.cores:
            core.dump_stacks()

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced; the same in every core."""
        return self.cores[0].weights_version
