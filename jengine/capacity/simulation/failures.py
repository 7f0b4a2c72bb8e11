"""Random replica failures and repairs, until every request has been answered.

In: a Fleet and a rate. Out: events of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jengine.capacity.simulation.fleet import Fleet


def fail_at_random(fleet: Fleet, mean: float, repair: float, seed: Sequence[int]) -> None:
    """Fail each replica at random: lifetimes are exponential with this `mean`, followed by `repair`
    seconds of downtime."""
    for stage, pool in enumerate(fleet.pools):
        for index in range(len(pool.replicas)):
            rng = np.random.default_rng([*seed, stage, index])
            _Mortal(fleet, stage, index, rng, mean, repair).live()


@dataclass
class _Mortal:
    """The lives of one replica."""

    fleet: Fleet
    stage: int
    index: int
    rng: np.random.Generator
    mean: float
    repair: float

    def live(self) -> None:
        self._after(self.rng.exponential(self.mean), self._die)

    def _die(self) -> None:
        if self.fleet.open or self.fleet.due:  # else nothing is left that would end the simulation
            self.fleet.fail(self.stage, self.index)
            self._after(self.repair, self._return)

    def _return(self) -> None:
        self.fleet.come_back(self.stage, self.index)
        self.live()

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        self.fleet.at(self.fleet.clock.now + seconds, happen)
