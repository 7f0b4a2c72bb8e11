"""Several engine cores in processes of their own, as one client: data parallelism over processes.

In: requests. Out: the token deltas of all cores. The parts have a subject each: `core_placement`
chooses a core for a request, `core_deaths` ends the requests of a core that dies, `core_changes`
has more and fewer cores, `core_questions` asks all of them. Must not know devices, or who started
the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jengine.distributed.core_changes import CoreChanges
from jengine.distributed.core_deaths import CoreDeaths
from jengine.distributed.core_placement import CorePlacement
from jengine.distributed.core_questions import CoreQuestions
from jengine.distributed.core_roster import CoreRoster
from jengine.distributed.router import Placed, Router
from jengine.engine.core_state import CoreState
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.questions import CoreQuestion
from jengine.errors import EngineDead
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.outputs import TokenDelta
from jengine.request import WireRequest
from jengine.scheduler.orders import Order

A = TypeVar("A")


class ProcessReplicas:
    """An EngineClient over several, which share a mailbox."""

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
        """Order, block size and `stored_as` are the cores'; they were told the tokenizer."""
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
        """All cores by their places, those that have died among them."""
        return self._roster.cores

    # --- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `outputs` has something to wait for."""
        return self.mailbox.has_work

    def add(self, wire: WireRequest) -> None:
        """Queue a request in one of the cores that live."""
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
        with self._roster.lock:
            for delta in deltas:
                core = self._router.replica_of(delta.request_id)
                if delta.times is not None and core is not None:
                    delta.times = delta.times.of_engine(core)
                self._router.note(delta)
        return deltas

    def _forget(self, request_id: str) -> bool:
        """Take a request out of the router. False if it was lost with its core."""
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
        """Have a function called when the last core has died."""
        self._deaths.when_all_are_dead(tell)

    def shutdown(self) -> None:
        """End all cores. Twice is harmless; in a forked child it does nothing."""
        self._deaths.expect_all()
        self.mailbox.fail(EngineDead("the engine was shut down."))
        for core in self.cores:
            core.shutdown()

    @property
    def serving(self) -> list[int]:
        """The cores that get requests."""
        with self._roster.lock:
            return self._roster.serving

    @property
    def next_place(self) -> int:
        """Where `add_core` will put a core."""
        return self._changes.next_place

    def replace(self, index: int, core: ProcessClient) -> None:
        """Take another core, which is ready, in the place of one that has died."""
        self._changes.replace(index, core)

    def add_core(self, core: ProcessClient) -> None:
        """Use one more core, which is ready, in the next place."""
        self._changes.add(core)

    def retire(self, index: int, seconds: float) -> bool:
        """End a core once all of its requests have ended. False, and it goes on as before, if they
        have not after so many seconds."""
        return self._changes.retire(index, seconds)

    # --- questions -------------------------------------------------------------------------------

    def ask(self, question: CoreQuestion[A]) -> A:
        """The answer of all cores that live, as one."""
        return self._questions.ask(question)

    def state(self) -> CoreState:
        """What the cores said last. The age is the oldest, and the step in progress the longest."""
        return self._questions.state()

    @property
    def is_compiling(self) -> bool:
        """Whether a step of one of them waits for a program that is being compiled."""
        return self.state().compiling

    def dump_stacks(self) -> None:
        """Have every core write its threads' stacks to stderr."""
        for core in self.cores:
            core.dump_stacks()

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced; the same in every core."""
        return self.cores[0].weights_version
