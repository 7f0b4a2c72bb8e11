"""When what happened to one completion, on the clock of the process that reads its deltas.

In: deltas with the time at which they were received, and the core's RequestTimes with some of them.
Out: intervals, and observations for the front's statistics. Times of two processes never meet:
what the core measured are durations.
"""

from __future__ import annotations

from typing import NamedTuple

from jengine.counts import RequestTimes
from jengine.metrics.front_stats import EngineHistograms, FrontStats
from jengine.outputs import TokenDelta


class Arrival(NamedTuple):
    """When a request came, on this process's monotonic clock, and what its caller says of it."""

    at: float
    traceparent: str | None = None  # W3C header: the span that it belongs to
    replica: int | None = None  # the data-parallel replica that is to answer; None: any


class Timing:
    """A completion from its request's arrival to its end."""

    __slots__ = ("arrival", "engine", "first", "last", "times", "_is_final")

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.first = 0.0  # when its first token was received; 0: not yet
        self.last = 0.0
        self.times: RequestTimes | None = None  # as the core knew them last
        self.engine: EngineHistograms | None = None
        self._is_final = False

    def note(self, delta: TokenDelta, at: float, stats: FrontStats) -> None:
        """A delta was received."""
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
            self.engine.next_tokens(at - self.last, count)
        self.last = at

    def intervals(self) -> RequestTimes | None:
        """The core's times. Until it has said when the request ended, `decode` is measured here:
        a completion may have ended before, with a stop string."""
        if self.times is None or self._is_final:
            return self.times
        times = self.times
        decode = self.last - self.first
        return RequestTimes(times.queue, times.prefill, decode, times.preemptions, times.engine)

    def stats_of(self, stats: FrontStats) -> EngineHistograms:
        """The statistics of the engine that answers it; the first one's until that is known."""
        return self.engine or stats.of(self.times.engine if self.times else 0)
