"""The engine's periodic log line, in vLLM's words, which its users grep: throughput, requests,
cache.

In: a core's counts, whose differences between lines are logged. Out: one log line per engine and
interval; at DEBUG while the engine is idle.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from jengine.counts import Counts, DraftCounts

logger = logging.getLogger(__name__)
INTERVAL = 10.0


class StatsLog:
    """Logs throughput, queue lengths and cache use once per interval; `tick` may be called from any
    thread and at any rate."""

    def __init__(
        self,
        counts: Callable[[], Counts],
        device: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = counts
        self._clock = clock
        self.device = device.upper()
        self._last: tuple[Counts, ...] = ()  # per engine, at the last line
        self._was_idle: list[bool] = []
        self._began = clock()
        self._ticking = threading.Lock()

    def tick(self) -> None:
        """Log a line for each engine if the interval is over."""
        if self._clock() - self._began < INTERVAL or not self._ticking.acquire(blocking=False):
            return
        try:
            self._log()
        finally:
            self._ticking.release()

    def _log(self) -> None:
        now, each = self._clock(), self.counts().each
        before = self._last if len(self._last) == len(each) else (Counts(),) * len(each)
        before = tuple(start_of(*pair) for pair in zip(before, each, strict=True))
        was_idle = self._was_idle if len(self._was_idle) == len(each) else [False] * len(each)
        idle = [is_idle(*pair) for pair in zip(before, each, strict=True)]
        for index, pair in enumerate(zip(before, each, strict=True)):
            level = logging.DEBUG if idle[index] and was_idle[index] else logging.INFO
            line = self.line(*pair, now - self._began)
            logger.log(level, "Engine %03d: %s", index, line)
        self._began, self._last, self._was_idle = now, each, idle

    def line(self, before: Counts, now: Counts, seconds: float) -> str:
        """Format an engine's log line from two successive counts."""
        computed = computed_prompt_tokens(now) - computed_prompt_tokens(before)
        generated = now.generation_tokens - before.generation_tokens
        preempted = now.preemptions - before.preemptions
        corrupted = now.corrupted - before.corrupted
        parts = [
            f"Avg prompt throughput: {computed / seconds:.1f} tokens/s",
            f"Avg generation throughput: {generated / seconds:.1f} tokens/s",
            f"Running: {now.running} reqs",
            f"Waiting: {now.waiting} reqs",
        ]
        if now.deferred:
            parts.append(f"Deferred: {now.deferred} reqs")
        if preempted:
            parts.append(f"Preemptions: {preempted}")
        parts.append(f"{self.device} KV cache usage: {now.cache_usage:.1%}")
        if now.prefix_queries:
            parts.append(f"Prefix cache hit rate: {now.prefix_hits / now.prefix_queries:.1%}")
        if now.external_queries:
            share = now.external_hits / now.external_queries
            parts.append(f"External prefix cache hit rate: {share:.1%}")
        if now.drafts.drafted > before.drafts.drafted:
            parts += drafts_in_words(before.drafts, now.drafts)
        if corrupted:
            parts.append(f"Corrupted: {corrupted} reqs")
        return ", ".join(parts)


def drafts_in_words(before: DraftCounts, now: DraftCounts) -> list[str]:
    """Format the acceptance of draft tokens between two counts."""
    drafted, accepted = now.drafted - before.drafted, now.accepted - before.accepted
    return [
        f"Mean acceptance length: {1 + accepted / (now.drafts - before.drafts):.2f}",
        f"Draft acceptance rate: {accepted / drafted:.1%}",
    ]


def start_of(before: Counts, now: Counts) -> Counts:
    """Baseline counts; zero if another core has taken the engine's place."""
    counters = ("steps", "query_tokens", "prompt_tokens", "generation_tokens")
    fell = any(getattr(now, name) < getattr(before, name) for name in counters)
    return Counts() if fell else before


def computed_prompt_tokens(counts: Counts) -> int:
    """Prompt tokens computed, prefix hits excluded."""
    return counts.prompt_tokens - counts.cached_prompt_tokens


def is_idle(before: Counts, now: Counts) -> bool:
    """Whether nothing was computed between the two counts."""
    return before.query_tokens == now.query_tokens
