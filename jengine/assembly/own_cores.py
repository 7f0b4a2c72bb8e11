"""The cores that one process starts for fronts in other processes, of this host or others. No jax.

In: EngineArgs. Out: the addresses of all ranks' cores, and cores that end with this process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jengine.assembly.args import EngineArgs
from jengine.assembly.cores import join_desk, launch_cores, shut_down
from jengine.distributed.joining import JoinDesk
from jengine.engine.process.beginning import START_SECONDS, Tell
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.messages import Ready
from jengine.engine.process.network import Door


class OwnCores:
    """Clients that end the cores, and the desk where those of other hosts join."""

    def __init__(self, args: EngineArgs, folder: Path) -> None:
        self.clients: list[ProcessClient] = []
        self._args = args
        self._folder = folder
        self._desk: JoinDesk | None = None

    def expect_others(self) -> None:
        """Let the cores of other hosts join, if some ranks are theirs."""
        self._desk = join_desk(self._args)

    def launch(self, door: Door | None = None) -> None:
        """Start this host's cores; a door lets fronts of other hosts in."""
        self.clients = launch_cores(self._args, self._folder, door=door)

    def addresses(self, tell: Tell, seconds: float = START_SECONDS) -> list[str]:
        """Where fronts reach the core of each rank, once those of other hosts have joined."""
        others = [] if self._desk is None else self._desk.wait(tell, seconds)
        return [*(client.address for client in self.clients), *others]

    def when_back(self, tell: Callable[[int, str], None]) -> None:
        """Have a function called with rank and address of a core that came back from elsewhere."""
        if self._desk is not None:
            self._desk.when_back(tell)

    def wait_until_ready(self, tell: Tell, seconds: float = START_SECONDS) -> list[Ready]:
        """Return when all of this host's are ready. The first one's progress is told."""
        return [
            client.wait_until_ready(tell if index == 0 else None, seconds)
            for index, client in enumerate(self.clients)
        ]

    def shutdown(self) -> None:
        """End them; cores that joined end with their hosts, which notice it."""
        if self._desk is not None:
            self._desk.close()
        shut_down(self.clients)
