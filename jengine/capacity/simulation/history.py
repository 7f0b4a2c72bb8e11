"""What happened to requests: arrays with an item per request, and a histogram of gaps of tokens.

In: live requests as they get tokens and end. Out: arrays. Gaps are counted in buckets of half a
percent, since a large simulation has hundreds of millions of them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

# Buckets of gaps between a microsecond and an hour, each this much wider than the one before.
SHORTEST, WIDER, BUCKETS = 1e-6, 1.005, 4410
FLUSH = 1 << 16
LOG_WIDER = float(np.log(WIDER))


@dataclass
class Gaps:
    """Histogram of inter-token latencies, in seconds."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    new: list[float] = field(default_factory=list)

    def add_all(self, values: list[float]) -> None:
        self.new += values
        if len(self.new) >= FLUSH:
            self.flush()

    def flush(self) -> None:
        """Move pending values into the buckets."""
        values, self.new = np.array(self.new), []
        places = np.log(np.maximum(values, SHORTEST) / SHORTEST) / LOG_WIDER
        chosen = np.minimum(places.astype(np.int64), BUCKETS - 1)
        self.counts += np.bincount(chosen, minlength=BUCKETS)

    def percentile(self, percent: float) -> float:
        """Percentile of the gaps, to within 0.5 %."""
        self.flush()
        total = int(self.counts.sum())
        if not total:
            return 0.0
        index = int(np.searchsorted(np.cumsum(self.counts), percent / 100 * total))
        return SHORTEST * WIDER ** (min(index, BUCKETS - 1) + 0.5)


COLUMNS = ("arrived", "first", "ended", "prompt", "cached", "answer")


@dataclass
class History:
    """Per finished request: times of arrival, first and last token (seconds), and token counts of
    prompt, cached prefix and answer."""

    arrived: array[float] = field(default_factory=lambda: array("d"))
    first: array[float] = field(default_factory=lambda: array("d"))
    ended: array[float] = field(default_factory=lambda: array("d"))
    prompt: array[int] = field(default_factory=lambda: array("q"))
    cached: array[int] = field(default_factory=lambda: array("q"))
    answer: array[int] = field(default_factory=lambda: array("q"))
    gaps: Gaps = field(default_factory=Gaps)
    refused: int = 0  # that no schedule could answer
    unanswered: int = 0  # at the end, since no replica lived
    rerun: int = 0  # whose replica died
    failures: int = 0  # of replicas
    moved_bytes: float = 0.0  # between pools
    fetched_bytes: float = 0.0  # from host memory

    def end(
        self, arrived: float, first: float, ended: float, prompt: int, cached: int, answer: int
    ) -> None:  # fmt: skip
        self.arrived.append(arrived)
        self.first.append(first)
        self.ended.append(ended)
        self.prompt.append(prompt)
        self.cached.append(cached)
        self.answer.append(answer)

    def columns(self) -> dict[str, np.ndarray]:
        return {name: np.array(getattr(self, name)) for name in COLUMNS}
