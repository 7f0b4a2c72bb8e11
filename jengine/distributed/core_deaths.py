"""Handles the death of engine cores: the dead core's requests fail, all others continue.

In: the cores to watch. Out: error deltas of lost requests, in the shared mailbox; callbacks once no
core is left. Must not know why a core died, or what replaces it.
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
    """Watches the cores and fails the requests of those that die."""

    def __init__(self, roster: CoreRoster, router: Router, mailbox: Mailbox) -> None:
        self._roster, self._router, self._mailbox = roster, router, mailbox
        self._told: list[Callable[[EngineDead], None]] = [mailbox.fail]
        self._all_are_to_end = False

    def watch(self, index: int, core: ProcessClient) -> None:
        core.when_dead(lambda error: self._lose(index, core, error))

    def when_all_are_dead(self, tell: Callable[[EngineDead], None]) -> None:
        """Register a callback for the death of the last core."""
        roster = self._roster
        with roster.lock:
            self._told.append(tell)
            error = None if roster.living else next(iter(roster.dead.values()))
        if error is not None:
            tell(error)

    def expect_all(self) -> None:
        """Shutdown has begun: do not log deaths from now on."""
        self._all_are_to_end = True

    def _lose(self, index: int, core: ProcessClient, error: EngineDead) -> None:
        """Mark a core dead and fail its requests."""
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
