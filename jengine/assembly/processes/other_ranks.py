"""The data-parallel ranks that do not run in child processes of this one. No jax.

In: a Deployment. Out: where their cores are, once they have joined. Ranks of other hosts come by
themselves (`--headless`); those on Ray are started here.
"""

from __future__ import annotations

from collections.abc import Callable

import jengine
from jengine.assembly.processes.deployment import Deployment
from jengine.assembly.processes.ray_ranks import RayRanks
from jengine.distributed.joining import JoinDesk
from jengine.engine.process.beginning import Tell
from jengine.wire.hosts import Door, checked_host


def other_ranks(deployment: Deployment) -> OtherRanks | None:
    """Ranks of other hosts; None if the engine has none."""
    return OtherRanks(deployment) if deployment.args.ranks.elsewhere else None


class OtherRanks:
    """The desk where their cores join, and what was started for them."""

    def __init__(self, deployment: Deployment) -> None:
        args = deployment.args
        host = checked_host("data_parallel_address", deployment.address)
        door = Door(host, deployment.secret, args.data_parallel_rpc_port)
        others = range(len(args.ranks.local), args.ranks.size)
        self._desk = JoinDesk(door, others, jengine.__version__)
        self._ray: RayRanks | None = None
        if args.data_parallel_backend == "ray":
            try:
                self._ray = RayRanks(
                    args.data_parallel_options or {}, args.devices_per_replica,
                    [deployment.on_ray(host, rank) for rank in others],
                )  # fmt: skip
            except BaseException:
                self._desk.close()
                raise

    def wait(self, tell: Tell, seconds: float) -> list[str]:
        """The addresses of all, in the order of their ranks."""
        return self._desk.wait(tell, seconds, self._check)

    def when_back(self, tell: Callable[[int, str], None]) -> None:
        """Have a function called with rank and address of a core that has joined again."""
        self._desk.when_back(tell)

    def close(self) -> None:
        """Let them end: other hosts notice that the front has gone."""
        if self._ray is not None:
            self._ray.is_ending = True
        self._desk.close()
        if self._ray is not None:
            self._ray.stop()

    def _check(self) -> None:
        if self._ray is not None:
            self._ray.check()
