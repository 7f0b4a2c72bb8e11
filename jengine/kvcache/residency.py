"""Block residency statistics: lifetime and reuse, for a sample of the blocks.

In: a block pool's events. Out: histograms of seconds. A residency starts at allocation and ends
when the content is evicted. Decides nothing, and must not know requests.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise

from jengine.counts import BlockTimes

# Uses of one block that are remembered; gaps are measured between the last of them.
USES = 4


class BlockResidency:
    """Samples block lifetimes: allocation, reuse, eviction."""

    def __init__(
        self, share: float, times: BlockTimes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`share`: fraction of allocations to sample, at random; `times`: histograms to fill."""
        self._times = times
        self._share = share
        self._clock = clock
        self._random = random.Random(0)  # noqa: S311 - a sample
        self._began: dict[int, float] = {}  # block -> when it was allocated
        self._uses: dict[int, deque[float]] = {}

    def allocated(self, blocks: Iterable[int]) -> None:
        """Blocks were allocated for new contents."""
        now = self._clock()
        for block in blocks:
            self._forget(block)
            if self._random.random() < self._share:
                self._began[block] = now
                self._uses[block] = deque(maxlen=USES)

    def used(self, blocks: Iterable[int]) -> None:
        """Cached blocks were hit by another request."""
        now = self._clock()
        for block in blocks:
            if block in self._uses:
                self._uses[block].append(now)

    def evicted(self, block: int) -> None:
        """A cached block was evicted."""
        if block not in self._began:
            return
        now, uses = self._clock(), self._uses[block]
        began = self._began[block]
        self._times.lifetime.observe(now - began)
        self._times.idle_before_evict.observe(now - (uses[-1] if uses else began))
        for one, following in pairwise(uses):
            self._times.reuse_gap.observe(following - one)
        self._forget(block)

    def _forget(self, block: int) -> None:
        self._began.pop(block, None)
        self._uses.pop(block, None)
