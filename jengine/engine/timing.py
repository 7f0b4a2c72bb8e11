"""Timestamps of one completion, on the clock of the front's process.

In: deltas with receive times, and the core's RequestTimes. Out: intervals, and observations for the
front's statistics. Clocks of two processes are never mixed: the core sends durations.
"""

from __future__ import annotations

from typing import NamedTuple

from jengine.counts import RequestTimes
from jengine.metrics.front_stats import EngineHistograms, FrontStats
from jengine.outputs import TokenDelta


class Arrival(NamedTuple):
    """Arrival time of a request on this process's monotonic clock, its trace parent, and the
    replica asked for."""

    at: float
    traceparent: str | None = None  # W3C header of the parent span
    replica: int | None = None  # pinned data-parallel replica; None: any


class CompletionTiming:
    """Timestamps of a completion from arrival to end."""

    __slots__ = ("arrival", "engine", "first", "last", "times", "_is_final")

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.first = 0.0  # when its first token was received; 0: not yet
        self.last = 0.0
        self.times: RequestTimes | None = None  # the core's latest
        self.engine: EngineHistograms | None = None
        self._is_final = False

    def note(self, delta: TokenDelta, at: float, stats: FrontStats) -> None:
        """Record a delta received at `at`."""
        if delta.times is not None:
            self.times = delta.times
            self._is_final = delta.finish_reason is not None
        count = len(delta.token_ids)
        if not count:
            return
        if self.engine is None:
            self.engine = self.stats_of(stats)
            self.engine.first_token.observe(at - self.arrival)
            self.first = at
        else:
            self.engine.inter_token.observe((at - self.last) / count, count)
        self.last = at

    def intervals(self) -> RequestTimes | None:
        """Intervals measured by the core. Until its final ones arrive `decode` is measured here: a
        stop string may have ended the completion earlier."""
        if self.times is None or self._is_final:
            return self.times
        times = self.times
        decode = self.last - self.first
        return RequestTimes(times.queue, times.prefill, decode, times.preemptions, times.engine)

    def stats_of(self, stats: FrontStats) -> EngineHistograms:
        """Histograms of the core that runs it; the first core's until that is known."""
        return self.engine or stats.of(self.times.engine if self.times else 0)
