"""Questions and calls to all engine cores that live, answered as one core would.

In: questions. Out: the answers, by core or as one. A core that dies meanwhile is left out. Must
not know how requests are placed, or what becomes of those of a core that dies.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TypeVar

from jengine.counts import Counts, together
from jengine.distributed.core_roster import CoreRoster
from jengine.distributed.repeated_calls import RepeatedCalls
from jengine.distributed.replica_state import Part, whole_health, whole_state
from jengine.distributed.router import Router
from jengine.engine.core_state import CoreState
from jengine.engine.process.client import ProcessClient
from jengine.errors import EngineDead
from jengine.executor.protocol import WorkerHealth
from jengine.grammar.shared_tokenizer import TokenizerData

T = TypeVar("T")


class CoreQuestions:
    """Asks one core after the other, and puts together what they say."""

    def __init__(
        self, roster: CoreRoster, router: Router, tokenizer: TokenizerData | None = None
    ) -> None:
        self._roster, self._router = roster, router
        self._tokenizer = tokenizer  # as the cores were told
        self._repeated = RepeatedCalls()

    def ask(self, question: Callable[[ProcessClient], T]) -> dict[int, T]:
        """The answers of all cores that live, without those that die meanwhile."""
        roster = self._roster
        answers = {}
        for index, core in [(i, roster.cores[i]) for i in roster.living]:
            try:
                answers[index] = question(core)
            except EngineDead:
                if core.is_alive:
                    raise
        roster.check_alive()
        return answers

    def call(self, method: str, arguments: bytes) -> list[bytes]:
        """The results of a call in every core that lives, one after the other."""
        found = self.ask(lambda core: core.call(method, arguments))
        answers = list(chain.from_iterable(found.values()))
        self._repeated.note(method, arguments, answers)
        return answers

    def make_alike(self, core: ProcessClient) -> None:
        """Have a new core do what the others were told before."""
        if self._tokenizer is not None:
            core.tell_tokenizer(self._tokenizer)
        if self.state().paused:
            core.pause()
        self._repeated.repeat(core.call)

    def stats(self) -> Counts:
        """The counts of all cores together, and of each."""
        found, retired = self.ask(ProcessClient.stats), self._roster.retired
        return together(
            [found.get(one.index) or retired.get(one.index) or one.counts for one in self._parts()]
        )

    def state(self) -> CoreState:
        """What the cores said last. The age is the oldest, and the step in progress the longest."""
        return whole_state(self._parts())

    def health(self) -> list[WorkerHealth]:
        """The processes of all cores; those of a core that has died say so."""
        return whole_health(self._parts(), self.ask(ProcessClient.health))

    def _parts(self) -> list[Part]:
        roster = self._roster
        return [
            Part(
                index,
                core.state(),
                self._router.counts[index],
                roster.dead.get(index),
                index in roster.retired,
            )
            for index, core in enumerate(roster.cores)
        ]
