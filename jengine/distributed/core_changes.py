"""Scales the number of engine cores up and down while requests run.

In: ready cores, or the index of one to retire. Out: a changed roster. A new core gets the
tokenizer, pause and adapters of the others. Must not know who starts cores, or how many are wanted.
"""

from __future__ import annotations

import time

from jengine.distributed.core_deaths import CoreDeaths
from jengine.distributed.core_questions import CoreQuestions
from jengine.distributed.core_roster import CoreRoster
from jengine.distributed.router import Router
from jengine.engine.process.client import ProcessClient
from jengine.engine.questions import AskStats
from jengine.errors import ConfigError, EngineDead

# Poll interval while a core drains, in seconds.
LOOK = 0.01


class CoreChanges:
    """Adds cores to the roster, and retires them after draining their requests."""

    def __init__(
        self, roster: CoreRoster, router: Router, deaths: CoreDeaths, questions: CoreQuestions
    ) -> None:
        self._roster, self._router = roster, router
        self._deaths, self._questions = deaths, questions

    @property
    def next_place(self) -> int:
        """Rank of the next core: that of a dead one if any, else the number of cores."""
        with self._roster.lock:
            return self._roster.next_place

    def replace(self, index: int, core: ProcessClient) -> None:
        """Put a ready core in the place of a dead one."""
        roster = self._roster
        with roster.lock:
            before = roster.cores[index]
        before.shutdown()  # its death may not have been noticed yet
        roster.check_alive()
        self._questions.make_alike(core)
        with roster.lock:
            roster.put(index, core)
        self._deaths.watch(index, core)

    def add(self, core: ProcessClient) -> None:
        """Add a ready core at `next_place`."""
        roster, place = self._roster, self.next_place
        if place < len(roster.cores):
            self.replace(place, core)
            return
        self._questions.make_alike(core)
        with roster.lock:
            roster.cores.append(core)
            self._router.grow()
        self._deaths.watch(place, core)

    def retire(self, index: int, seconds: float) -> bool:
        """Drain a core and end it. Returns False, and the core serves on, if it still has requests
        after `seconds`."""
        roster = self._roster
        with roster.lock:
            if not [i for i in roster.serving if i != index]:
                raise ConfigError("the last core that takes requests cannot be retired.")
            roster.leaving.add(index)
        try:
            if not self._has_drained(index, seconds):
                return False
            counts = roster.cores[index].ask(AskStats())  # reported state may be older
            with roster.lock:
                roster.retired[index] = counts
                roster.dead[index] = EngineDead(f"core {index} was retired.")
        finally:
            with roster.lock:
                roster.leaving.discard(index)
        roster.cores[index].shutdown()
        return True

    def _has_drained(self, index: int, seconds: float) -> bool:
        """Wait for a core's requests to finish; False if some remain at the deadline."""
        deadline = time.monotonic() + seconds
        while self._has_requests(index):
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK)
        return True

    def _has_requests(self, index: int) -> bool:
        with self._roster.lock:
            return self._router.counts[index] > 0
