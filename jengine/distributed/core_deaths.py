"""The death of engine cores: a core takes its own requests with it, and no others.

In: the cores to watch. Out: the ends of requests that were lost, in the mailbox of all cores; word
to those who asked for it once no core is left. Must not know why a core has died, or what takes its
place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from jengine.distributed.core_roster import CoreRoster
from jengine.distributed.replica_state import lost_request
from jengine.distributed.router import Router
from jengine.engine.process.client import ADVICE, ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.errors import EngineDead

logger = logging.getLogger(__name__)


class CoreDeaths:
    """Watches the cores, and ends the requests of those that die."""

    def __init__(self, roster: CoreRoster, router: Router, mailbox: Mailbox) -> None:
        self._roster, self._router, self._mailbox = roster, router, mailbox
        self._told: list[Callable[[EngineDead], None]] = [mailbox.fail]
        self._all_are_to_end = False

    def watch(self, index: int, core: ProcessClient) -> None:
        """Notice the death of the core in this place."""
        core.when_dead(lambda error: self._lose(index, core, error))

    def when_all_are_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """Have a function called when the last core has died."""
        roster = self._roster
        with roster.lock:
            self._told.append(tell)
            error = None if roster.living else next(iter(roster.dead.values()))
        if error is not None:
            tell(error)

    def expect_all(self) -> None:
        """All cores are being shut down: their deaths are no news for the log."""
        self._all_are_to_end = True

    def _lose(self, index: int, core: ProcessClient, error: EngineDead) -> None:
        """A core has died: its requests end with an error, the others go on."""
        roster, router = self._roster, self._router
        with roster.lock:
            if roster.is_expected_dead(index, core):
                return
            roster.dead[index] = error
            lost = [name for name, placed in router.requests.items() if placed.replica == index]
            for name in lost:
                router.leave(name)
            told = list(self._told) if not roster.living else []
        which = f"core {index} of {len(roster.cores)}"
        if not self._all_are_to_end:
            logger.error("%s has died: %s", which, str(error).removesuffix(ADVICE))
        message = f"{which} has died, and this request with it. Send it again."
        self._mailbox.deliver([lost_request(name, message) for name in lost])
        for tell in told:
            tell(error)
