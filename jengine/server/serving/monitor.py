"""The monitor: notices that the engine has died or stalled, and logs its statistics also while it
is idle.

In: a service. Out: its phase, and a dump of all stacks when the engine stalls. Runs on the event
loop; calls that may wait for the engine run in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
from collections.abc import Sequence

from jengine.errors import EngineDead
from jengine.server.peers.board import BoardField
from jengine.server.phase import Phase
from jengine.server.serving.progress_watch import ProgressWatch
from jengine.server.serving.service import Service

logger = logging.getLogger(__name__)
INTERVAL = 0.25


async def monitor(service: Service) -> None:
    """Poll the engine's health until the service is dead."""
    looking: asyncio.Future[None] | None = None
    while service.phase is not Phase.DEAD:
        service.peers.board.beat()
        if service.watch is not None:
            if looking is None or looking.done():
                noticed(looking)
                looking = asyncio.ensure_future(asyncio.to_thread(look, service, service.watch))
            judge(service, service.watch)
        await asyncio.sleep(INTERVAL)
    if looking is not None and looking.done():
        noticed(looking)


def look(service: Service, watch: ProgressWatch) -> None:
    """Poll the engine once, and log statistics when they are due."""
    watch.look()
    log = service.live.engine.session.log
    if log is not None:
        log.tick()


def noticed(looking: asyncio.Future[None] | None) -> None:
    """Log a failed poll. Whether the engine is dead is decided by its client."""
    error = None if looking is None else looking.exception()
    if error is not None and not isinstance(error, EngineDead):
        logger.error("The engine's health could not be asked", exc_info=error)


def judge(service: Service, watch: ProgressWatch) -> None:
    """Set the server's phase from the liveness and progress of the engine's cores."""
    service.check_alive()
    if service.phase not in (Phase.SERVING, Phase.DEGRADED, Phase.STALLED):
        return
    cores, stuck = watch.cores, watch.stuck(service.settings.stall_timeout)
    dead = [f"{core.name} has died" for core in cores if core.death is not None]
    if len(stuck) > service.peers.board.own(BoardField.STUCK):
        tell_stall(service, stuck)
    service.peers.board.note(BoardField.STUCK, len(stuck))
    lanes = [f"all threads for {one.name} are stuck" for one in service.stuck_lanes]
    note_problem(service, [*dead, *(f"{name} makes no progress" for name in stuck), *lanes])
    if stuck and len(stuck) == len(cores) - len(dead):
        service.phase = Phase.STALLED
    else:
        service.phase = Phase.DEGRADED if service.problem else Phase.SERVING


def tell_stall(service: Service, stuck: Sequence[str]) -> None:
    """Log which cores are stuck, with the stacks of all threads."""
    logger.critical(
        "%s: there is work or the core says nothing, and no progress for more than %g seconds "
        "(--stall-timeout). Health is red until it goes on. The stacks of all threads follow.",
        ", ".join(stuck), service.settings.stall_timeout,
    )  # fmt: skip
    if sys.stderr is not None:
        faulthandler.dump_traceback(all_threads=True)
    service.live.engine.client.dump_stacks()


def note_problem(service: Service, problems: Sequence[str]) -> None:
    """Log problems that changed, and keep them for /health."""
    problem = "; ".join(problems) or None
    if problem == service.problem:
        return
    service.problem = problem
    if problem is None:
        logger.warning("All cores and lanes make progress again.")
    else:
        logger.error("/health is red: %s.", problem)
