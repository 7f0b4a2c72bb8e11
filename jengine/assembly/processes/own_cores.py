"""Cores that one process starts for fronts in other processes, of this host or others. No jax.

In: a Deployment. Out: addresses of all ranks' cores, and cores that end with this process.
"""

from __future__ import annotations

from collections.abc import Callable

from jengine.assembly.processes.cores import launch_cores, shut_down
from jengine.assembly.processes.deployment import Deployment
from jengine.assembly.processes.other_ranks import OtherRanks, other_ranks
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.startup import START_SECONDS, Tell
from jengine.engine.process.to_front import Ready
from jengine.wire.doors import Door


class OwnCores:
    """Owns the clients of this host's cores, and the ranks on other hosts or on Ray."""

    def __init__(self, deployment: Deployment) -> None:
        self.clients: list[ProcessClient] = []
        self._deployment = deployment
        self._others: OtherRanks | None = None

    def expect_others(self) -> None:
        """Listen for cores of other hosts if there are any, and start ranks on Ray."""
        self._others = other_ranks(self._deployment)

    def launch(self, door: Door | None = None) -> None:
        """Start this host's cores; a door admits fronts of other hosts."""
        self.clients = launch_cores(self._deployment, door=door)

    def addresses(self, tell: Tell, seconds: float = START_SECONDS) -> list[str]:
        """Addresses of all ranks' cores, after those of other hosts have joined."""
        others = [] if self._others is None else self._others.wait(tell, seconds)
        return [*(client.address for client in self.clients), *others]

    def when_back(self, tell: Callable[[int, str], None]) -> None:
        """Register a callback for cores of other hosts that restarted: (rank, address)."""
        if self._others is not None:
            self._others.when_back(tell)

    def wait_until_ready(self, tell: Tell, seconds: float = START_SECONDS) -> list[Ready]:
        """Wait until all of this host's cores are ready. `tell` gets the first one's progress."""
        return [
            client.wait_until_ready(tell if index == 0 else None, seconds)
            for index, client in enumerate(self.clients)
        ]

    def shutdown(self) -> None:
        """Shut down this host's cores. Cores of other hosts end when they lose the front."""
        if self._others is not None:
            self._others.close()
        shut_down(self.clients)
