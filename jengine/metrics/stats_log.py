"""The engine's regular log line: throughput, requests, cache, as vLLM users know it.

In: token deltas and finished requests. Out: one log line per interval, on a monotonic clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from jengine.outputs import Counts, TokenDelta

logger = logging.getLogger(__name__)
INTERVAL = 10.0


class FinishedRequest(Protocol):
    """The attributes of a finished request that the log reads."""

    num_cached_tokens: int

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """The tokens of its prompt."""
        ...


class StatsLog:
    """Call `count` for each step; it logs once per interval."""

    def __init__(self, counts: Callable[[], Counts], device: str) -> None:
        self.counts = counts
        self.device = device.upper()
        self._start_interval()

    def count(self, deltas: Sequence[TokenDelta], finished: Sequence[FinishedRequest]) -> None:
        """Count the tokens and finished requests of one step."""
        self._written += sum(len(delta.token_ids) for delta in deltas)
        for request in finished:
            self._read += len(request.prompt_token_ids) - request.num_cached_tokens
        elapsed = time.monotonic() - self._began
        if elapsed >= INTERVAL:
            logger.info("%s", self.line(elapsed))
            self._start_interval()

    def line(self, seconds: float) -> str:
        """The log line for the interval so far."""
        counts = self.counts()
        parts = [
            f"Engine 000: Avg prompt throughput: {self._read / seconds:.1f} tokens/s",
            f"Avg generation throughput: {self._written / seconds:.1f} tokens/s",
            f"Running: {counts.running} reqs",
            f"Waiting: {counts.waiting} reqs",
        ]
        if counts.preemptions:
            parts.append(f"Preemptions: {counts.preemptions}")
        parts.append(f"{self.device} KV cache usage: {counts.cache_usage:.1%}")
        if counts.prefix_queries:
            parts.append(f"Prefix cache hit rate: {counts.prefix_hits / counts.prefix_queries:.1%}")
        return ", ".join(parts)

    def _start_interval(self) -> None:
        self._began = time.monotonic()
        self._read = 0
        self._written = 0
