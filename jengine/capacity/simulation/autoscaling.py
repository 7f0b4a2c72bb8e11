"""Autoscaling by the number of requests in progress.

In: a Fleet of one pool and an Autoscaling. Out: events of the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from jengine.capacity.simulation.fleet import Fleet

PERIOD = 10.0  # seconds between two looks at the requests in progress


class Autoscaling(msgspec.Struct, frozen=True):
    """Target load, limits and delays of scaling."""

    least: int
    target: float = 32.0  # requests in progress for each replica
    start: float = 60.0  # seconds until a new replica takes requests
    down_after: float = 300.0  # seconds for which fewer must have been wanted


@dataclass
class Autoscaler:
    """Scales a pool at intervals until all requests have been answered."""

    fleet: Fleet
    settings: Autoscaling
    off: set[int] = field(init=False)
    starting: dict[int, float] = field(default_factory=dict)  # when each takes requests
    enough_since: float | None = None
    accounted: float = 0.0  # until when replicas that are off have been counted as absent

    def __post_init__(self) -> None:
        self.pool = self.fleet.pools[0]
        self.off = set(range(self.settings.least, len(self.pool.replicas)))
        self.pool.closed = set(self.off)
        self._look_later()

    def look(self) -> None:
        """Account for the interval, scale, and schedule the next look while there are requests."""
        is_over = not (self.fleet.open or self.fleet.due)
        ended = self.fleet.history.ended
        self._account(max(ended, default=0.0) if is_over else self.fleet.clock.now)
        if not is_over:
            self._open_those_that_have_started()
            self._end_those_that_have_drained()
            self._follow(self._wanted())
            self._look_later()

    def _account(self, until: float) -> None:
        for index in self.off:
            self.pool.replicas[index].work.absent += until - self.accounted
        self.accounted = until

    def _look_later(self) -> None:
        self.fleet.at(self.fleet.clock.now + PERIOD, self.look)

    def _wanted(self) -> int:
        needed = -(-len(self.fleet.open) // self.settings.target)
        return min(max(int(needed), self.settings.least), len(self.pool.replicas))

    def _follow(self, wanted: int) -> None:
        now = self.fleet.clock.now
        have = len(self.pool.living) + len(self.starting)
        if wanted >= have:
            self.enough_since = None
        for _ in range(wanted - have):
            self._add(now)
        if wanted < have:
            self.enough_since = now if self.enough_since is None else self.enough_since
            if now - self.enough_since >= self.settings.down_after:
                self.pool.closed.update(self.pool.living[wanted:])
                self.enough_since = None

    def _add(self, now: float) -> None:
        """Add a replica: a draining one accepts requests again, else one starts with an empty
        cache."""
        draining = self.pool.closed - self.off - set(self.starting)
        if draining:
            self.pool.closed.discard(min(draining))
            return
        index = min(self.off)
        self.off.discard(index)
        self.pool.replicas[index].start()
        self.starting[index] = now + self.settings.start

    def _open_those_that_have_started(self) -> None:
        for index in [one for one, at in self.starting.items() if at <= self.fleet.clock.now]:
            del self.starting[index]
            self.pool.closed.discard(index)

    def _end_those_that_have_drained(self) -> None:
        for index in self.pool.closed - self.off - set(self.starting):
            if not self.pool.replicas[index].scheduler.has_unfinished:
                self.off.add(index)
