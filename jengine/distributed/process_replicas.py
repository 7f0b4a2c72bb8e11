"""Several engine cores in processes of their own, as one client: data parallelism over processes.

In: requests. Out: the token deltas of all cores. Each request goes to the core that holds its
prefix, then to the least loaded one, by what the cores tell of their caches and queues. A core that
dies takes its own requests only. Must not know devices, or who started the cores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from jengine.counts import Counts, together
from jengine.distributed.replica_state import Part, lost_request, whole_health, whole_state
from jengine.distributed.router import Placed, Router
from jengine.engine.core_state import CoreState
from jengine.engine.process.client import ADVICE, ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.errors import EngineDead
from jengine.executor.protocol import WorkerHealth
from jengine.kvcache.contents import Contents
from jengine.outputs import TokenDelta
from jengine.request import Request, WireRequest

logger = logging.getLogger(__name__)
T = TypeVar("T")
# A core that says nothing for so many seconds, or whose step takes that long, gets requests only
# if every other one does too.
SLOW = 5.0


class ProcessReplicas:
    """An EngineClient over several, which share a mailbox."""

    def __init__(
        self,
        cores: Sequence[ProcessClient],
        mailbox: Mailbox,
        block_size: int,
        *,
        by_urgency: bool,
        stored_as: str = "",
    ) -> None:
        """`by_urgency`: requests that are less urgent than a new one do not delay it. Block size
        and `stored_as` are those of the cores' caches."""
        self.cores = list(cores)
        self.mailbox = mailbox
        self._block_size, self._stored_as = block_size, stored_as
        self._by_urgency = by_urgency
        self._router = Router(len(cores), block_size)
        self._lock = threading.Lock()  # around the router
        self._ends = False  # cores are being shut down
        self._dead: dict[int, EngineDead] = {}  # by core, in the order of their deaths
        self._told: list[Callable[[EngineDead], None]] = [mailbox.fail]
        for index, core in enumerate(cores):
            self._watch(index, core)

    # --- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `outputs` has something to wait for."""
        return self.mailbox.has_work

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
        deltas = self.mailbox.take(wait)
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
        contents = Contents(self._block_size, self.weights_version, self._stored_as)
        return contents.of(Request(wire, length, 0), (length - 1) // self._block_size)

    def _choose(self, wire: WireRequest, hashes: list[bytes]) -> int:
        living = self._brisk()
        found = [self.cores[i].contents.prefix(hashes) * self._block_size for i in living]
        loads = self._router.loads_for(wire.priority if self._by_urgency else None)
        loads = [load + more for load, more in zip(loads, self._others(), strict=True)]
        return self._router.best_of(living, found, hashes, loads)

    def _others(self) -> list[int]:
        """Tokens of other fronts' requests in each core, as its queue lengths tell: each request is
        taken for as long as this front's are on average."""
        own = self._router.counts
        tokens = sum(self._router.loads) // max(sum(own), 1) or self._block_size
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

    def _brisk(self) -> list[int]:
        """The living cores but for those that seem to stand still, unless all do."""
        living = self._living()
        states = {i: self.cores[i].state() for i in living}
        return [i for i in living if max(states[i].age, states[i].stepping) < SLOW] or living

    def _watch(self, index: int, core: ProcessClient) -> None:
        core.when_dead(lambda error: self._lose(index, core, error))

    def replace(self, index: int, core: ProcessClient) -> None:
        """Take another core, which is ready, in the place of one that has died."""
        with self._lock:
            before = self.cores[index]
        before.shutdown()  # also if its death has not been noticed yet
        self.check_alive()
        if self.state().paused:
            core.pause()
        with self._lock:
            self.cores[index] = core
            self._dead.pop(index, None)
        self._watch(index, core)

    def _lose(self, index: int, core: ProcessClient, error: EngineDead) -> None:
        """A core has died: its requests end with an error, the others go on."""
        with self._lock:
            if self.cores[index] is not core:
                return
            self._dead[index] = error
            lost = [
                name for name, placed in self._router.requests.items() if placed.replica == index
            ]
            for name in lost:
                self._router.leave(name)
            told = list(self._told) if not self._living() else []
        which = f"core {index} of {len(self.cores)}"
        if not self._ends:
            logger.error("%s has died: %s", which, str(error).removesuffix(ADVICE))
        message = f"{which} has died, and this request with it. Send it again."
        self.mailbox.deliver([lost_request(name, message) for name in lost])
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
        self._ends = True
        self.mailbox.fail(EngineDead("the engine was shut down."))
        for core in self.cores:
            core.shutdown()

    # --- questions -------------------------------------------------------------------------------

    def _ask(self, question: Callable[[ProcessClient], T]) -> dict[int, T]:
        """The answers of all cores that live, without those that die meanwhile."""
        answers = {}
        for index, core in [(i, self.cores[i]) for i in self._living()]:
            try:
                answers[index] = question(core)
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
        found = self._ask(ProcessClient.stats)
        return together([found.get(one.index) or one.counts for one in self._parts()])

    def state(self) -> CoreState:
        """What the cores said last. The age is the oldest, and the step in progress the longest."""
        return whole_state(self._parts())

    def _parts(self) -> list[Part]:
        return [
            Part(index, core.state(), self._router.counts[index], self._dead.get(index))
            for index, core in enumerate(self.cores)
        ]

    @property
    def is_compiling(self) -> bool:
        """Whether a step of one of them waits for a program that is being compiled."""
        return self.state().compiling

    def call(self, method: str, arguments: bytes) -> list[bytes]:
        """The results of a call in every core that lives, one after the other."""
        found = self._ask(lambda core: core.call(method, arguments))
        return list(chain.from_iterable(found.values()))

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes in every core. False if requests are using the cache of one."""
        asked = self._ask(lambda core: core.reset_prefix_cache(reset_running_requests))
        return all(asked.values())

    def health(self) -> list[WorkerHealth]:
        """The processes of all cores; those of a core that has died say so."""
        return whole_health(self._parts(), self._ask(ProcessClient.health))

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
