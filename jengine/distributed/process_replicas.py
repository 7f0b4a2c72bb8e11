"""Data parallelism over engine-core processes: several clients behind one EngineClient.

In: requests. Out: the token deltas of all cores. `CorePlacement` chooses a core for a request,
`core_deaths` fails the requests of a core that dies, `core_changes` scales up and down,
`core_questions` calls all cores. Must not know devices, or who started the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jengine.distributed.core_changes import CoreChanges
from jengine.distributed.core_deaths import CoreDeaths
from jengine.distributed.core_questions import CoreQuestions
from jengine.distributed.core_roster import CoreRoster
from jengine.distributed.router import Placed, Router
from jengine.engine.core_state import CoreState
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.questions import CoreQuestion
from jengine.errors import EngineDead, RequestError
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.kvcache.contents import Contents
from jengine.outputs import TokenDelta
from jengine.request import Request, WireRequest
from jengine.scheduler.orders import Order

A = TypeVar("A")


class ProcessReplicas:
    """An EngineClient over several, which share one mailbox."""

    def __init__(
        self,
        cores: Sequence[ProcessClient],
        mailbox: Mailbox,
        block_size: int,
        order: Order,
        *,
        stored_as: str = "",
        tokenizer: TokenizerData | None = None,
    ) -> None:
        """`order`, `block_size` and `stored_as` must equal the cores'. `tokenizer` has already been
        sent to them; a new core gets the same."""
        self.mailbox = mailbox
        self._roster = CoreRoster(cores)
        self._router = Router(len(cores), block_size)
        self._placement = CorePlacement(
            self._roster, self._router, block_size, order, stored_as=stored_as
        )
        self._questions = CoreQuestions(self._roster, self._router, tokenizer)
        self._deaths = CoreDeaths(self._roster, self._router, mailbox)
        self._changes = CoreChanges(self._roster, self._router, self._deaths, self._questions)
        for index, core in enumerate(cores):
            self._deaths.watch(index, core)

    @property
    def cores(self) -> list[ProcessClient]:
        """All cores by rank, dead ones included."""
        return self._roster.cores

    # --- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self.mailbox.has_work

    def add(self, wire: WireRequest) -> None:
        length = len(wire.prompt_token_ids)
        hashes = self._placement.hashes(wire, self.weights_version)
        while True:
            self.check_alive()
            with self._roster.lock:
                chosen = self._placement.choose(wire, hashes)
                core = self.cores[chosen]
                core.check(wire)
                self._router.enter(wire.request_id, Placed(chosen, length, hashes, wire.priority))
            try:
                core.add(wire)
            except EngineDead:
                if not self._forget(wire.request_id):
                    return  # lost with its core, which has failed it
            except BaseException:
                self._forget(wire.request_id)
                raise
            else:
                return

    def abort(self, request_id: str) -> None:
        """Queue an abort. Lock-free, since a finalizer may call it at any time."""
        chosen = self._router.replica_of(request_id)
        if chosen is not None:
            self.cores[chosen].abort(request_id)

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        self.cores[0].check_process()
        deltas = self.mailbox.take(wait)
        with self._roster.lock:
            for delta in deltas:
                core = self._router.replica_of(delta.request_id)
                if delta.times is not None and core is not None:
                    delta.times = delta.times.of_engine(core)
                self._router.note(delta)
        return deltas

    def _forget(self, request_id: str) -> bool:
        """Remove a request from the router. False if it was lost with its core."""
        with self._roster.lock:
            known = request_id in self._router
            if known:
                self._router.leave(request_id)
            return known

    # --- death, more and fewer cores -------------------------------------------------------------

    def check_alive(self) -> None:
        """Raise EngineDead if no core lives."""
        self._roster.check_alive()

    def when_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """Register a callback for the death of the last core."""
        self._deaths.when_all_are_dead(tell)

    def shutdown(self) -> None:
        """End all cores. Idempotent; a no-op in a forked child."""
        self._deaths.expect_all()
        self.mailbox.fail(EngineDead("the engine was shut down."))
        for core in self.cores:
            core.shutdown()

    @property
    def serving(self) -> list[int]:
        """Cores that accept requests."""
        with self._roster.lock:
            return self._roster.serving

    @property
    def next_place(self) -> int:
        """The rank that `add_core` will use."""
        return self._changes.next_place

    def replace(self, index: int, core: ProcessClient) -> None:
        """Put a ready core in the place of a dead one."""
        self._changes.replace(index, core)

    def add_core(self, core: ProcessClient) -> None:
        """Add a ready core at `next_place`."""
        self._changes.add(core)

    def retire(self, index: int, seconds: float) -> bool:
        """Drain a core and end it. Returns False, and the core serves on, if it still has requests
        after `seconds`."""
        return self._changes.retire(index, seconds)

    # --- questions -------------------------------------------------------------------------------

    def ask(self, question: CoreQuestion[A]) -> A:
        """Call every living core; returns the merged answer."""
        return self._questions.ask(question)

    def state(self) -> CoreState:
        """Last reported state, merged: the oldest age, the longest running step."""
        return self._questions.state()

    @property
    def is_compiling(self) -> bool:
        return self.state().compiling

    def dump_stacks(self) -> None:
        for core in self.cores:
            core.dump_stacks()

    @property
    def weights_version(self) -> int:
        return self.cores[0].weights_version


# A core whose last report is older than this, or whose step takes longer, gets requests only if
# every other one is as slow.
SLOW = 5.0


class CorePlacement:
    """Chooses among the serving cores. Stateless."""

    def __init__(
        self,
        roster: CoreRoster,
        router: Router,
        block_size: int,
        order: Order,
        *,
        stored_as: str,
    ) -> None:
        self._roster, self._router = roster, router
        self._block_size, self._stored_as = block_size, stored_as
        self._order = order

    def hashes(self, wire: WireRequest, weights_version: int) -> list[bytes]:
        """Hashes of a prompt's full blocks, excluding its last token, which is always computed."""
        if wire.skip_reading_prefix_cache:
            return []
        length = len(wire.prompt_token_ids)
        contents = Contents(self._block_size, weights_version, self._stored_as)
        return contents.of(Request(wire, length, 0), (length - 1) // self._block_size)

    def choose(self, wire: WireRequest, hashes: list[bytes]) -> int:
        """The core that the request names (`data_parallel_rank`), else the best for these block
        hashes."""
        if wire.replica is not None:
            if wire.replica not in self._roster.serving:
                raise RequestError(
                    f"data_parallel_rank {wire.replica} does not serve: it has ended or is about "
                    "to. Leave it out, or name another."
                )
            return wire.replica
        cores, among = self._roster.cores, self._brisk()
        found = [cores[i].contents.prefix(hashes) * self._block_size for i in among]
        loads = self._router.loads_for(self._order.delayed_by(wire))
        loads = [load + more for load, more in zip(loads, self._others(), strict=True)]
        return self._router.best_of(among, found, hashes, loads)

    def _brisk(self) -> list[int]:
        """The serving cores without a stalled step or stale state; all of them if every one
        stalls."""
        serving = self._roster.serving
        states = {i: self._roster.cores[i].state() for i in serving}
        return [i for i in serving if max(states[i].age, states[i].stepping) < SLOW] or serving

    def _others(self) -> list[int]:
        """Estimated load per core, in tokens, from other front ends: their share of the core's
        reported queue, times the mean length of this front end's requests."""
        own = self._router.counts
        tokens = sum(self._router.loads) // max(sum(own), 1) or self._block_size
        states = [core.state().counts for core in self._roster.cores]
        there = [counts.running + counts.waiting for counts in states]
        return [max(count - own[i], 0) * tokens for i, count in enumerate(there)]
