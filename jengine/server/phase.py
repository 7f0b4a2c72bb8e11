"""A server's phase, from which its health follows."""

from __future__ import annotations

from enum import Enum

from jengine.server.errors import ApiError


class Phase(Enum):
    """A server's state, from starting to dead."""

    STARTING = "starting"  # the engine loads and compiles
    SERVING = "serving"
    DEGRADED = "degraded"  # some cores have died or stalled, others serve
    DRAINING = "draining"  # open requests finish, new ones are refused
    STALLED = "stalled"  # work is scheduled but no core makes progress
    DEAD = "dead"  # the engine has stopped

    @property
    def takes_requests(self) -> bool:
        """Whether new requests are accepted and will be answered soon (readiness)."""
        return self in (Phase.SERVING, Phase.DEGRADED)

    @property
    def is_live(self) -> bool:
        """Whether an orchestrator should not restart this process (liveness)."""
        return self is not Phase.DEAD


WHY_NOT = {
    Phase.STARTING: "The engine is still starting. /health/ready tells when it takes requests.",
    Phase.DRAINING: "This server is shutting down. Send the request elsewhere.",
    Phase.STALLED: "The engine has work and makes no progress. Send the request elsewhere.",
}


def check_serving(phase: Phase) -> None:
    """Raise ApiError 503 unless requests can be accepted. A stalled engine still queues them."""
    if phase is Phase.DEAD:
        raise ApiError(503, "The engine has stopped.", kind="InternalServerError")
    if phase in (Phase.STARTING, Phase.DRAINING):
        raise ApiError(503, WHY_NOT[phase])
