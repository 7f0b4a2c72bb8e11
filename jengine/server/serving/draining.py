"""Graceful shutdown: open requests finish, the rest is aborted after a timeout.

In: a service. Out: no open requests. Meanwhile new requests get 503 and the readiness probe fails,
so that load balancers pick another server.
"""

from __future__ import annotations

import asyncio
import logging

from jengine.server.phase import Phase
from jengine.server.serving.service import Service

logger = logging.getLogger(__name__)
GLANCE = 0.02
# Seconds for aborted requests to send their last chunk.
GRACE = 2.0


async def drain(service: Service) -> None:
    """Refuse new requests; return when none is open."""
    if service.phase in (Phase.SERVING, Phase.DEGRADED, Phase.STALLED):
        service.phase = Phase.DRAINING
    timeout = service.settings.shutdown_timeout
    if service.phase is not Phase.DRAINING or not service.open_requests:
        return
    logger.info("Waiting up to %g seconds for %d completions. A second signal ends them now.",
                timeout, service.open_requests)  # fmt: skip
    if not await emptied(service, timeout):
        logger.warning("Aborting %d completions after %g seconds (--shutdown-timeout).",
                       service.open_requests, timeout)  # fmt: skip
        service.abort(None)
        await emptied(service, GRACE)


async def emptied(service: Service, seconds: float) -> bool:
    """Wait at most `seconds` until no request is open. Returns whether none is."""
    end = asyncio.get_running_loop().time() + seconds
    while service.open_requests and service.phase is not Phase.DEAD:
        if asyncio.get_running_loop().time() >= end:
            return False
        await asyncio.sleep(GLANCE)
    return True
