"""The monitor: notices while the server runs that its engine has died or makes no progress, and
logs the engine's statistics also while it is idle.

In: a service. Out: its phase, and a dump of all stacks when the engine stalls. It runs on the event
loop; what may wait for the engine runs in a thread, one look at a time.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys

from jengine.errors import EngineDead
from jengine.server.phase import Phase
from jengine.server.serving.progress_watch import ProgressWatch
from jengine.server.serving.service import Service

logger = logging.getLogger(__name__)
INTERVAL = 0.25


async def monitor(service: Service) -> None:
    """Watch until the service is dead."""
    looking: asyncio.Future[None] | None = None
    while service.phase is not Phase.DEAD:
        service.peers.board.beat()
        if service.watch is not None:
            if looking is None or looking.done():
                noticed(looking)
                looking = asyncio.ensure_future(asyncio.to_thread(look, service, service.watch))
            judge(service, service.watch.age)
        await asyncio.sleep(INTERVAL)
    if looking is not None and looking.done():
        noticed(looking)


def look(service: Service, watch: ProgressWatch) -> None:
    """Ask the engine how far it is, and log its statistics when they are due."""
    watch.look()
    log = service.live.engine.session.log
    if log is not None:
        log.tick()


def noticed(looking: asyncio.Future[None] | None) -> None:
    """Take note of a look that failed. That the engine is dead is judged by its client."""
    error = None if looking is None else looking.exception()
    if error is not None and not isinstance(error, EngineDead):
        logger.error("The engine's health could not be asked", exc_info=error)


def judge(service: Service, age: float | None) -> None:
    """Set the phase by the engine's life and by how long ago it made progress."""
    service.check_alive()
    limit = service.settings.stall_timeout
    stuck = age is not None and age > limit > 0
    if service.phase is Phase.SERVING and stuck:
        logger.critical(
            "The engine has work, and no step began for %.1f seconds (--stall-timeout %g). Health "
            "is red until steps go on. The stacks of all threads follow.", age, limit,
        )  # fmt: skip
        if sys.stderr is not None:
            faulthandler.dump_traceback(all_threads=True)
        service.live.engine.client.dump_stacks()
        service.phase = Phase.STALLED
    elif service.phase is Phase.STALLED and not stuck:
        logger.warning("The engine makes progress again.")
        service.phase = Phase.SERVING
