"""Limits a step's prefill tokens so that it fills a compiled size (GPUs only).

In: the running and waiting requests. Out: a limit in the PlanBuilder; the rest runs in the next
step. Must not know blocks, prefix hits, or how a step is compiled.

A GPU step reads all weights, in which time it can compute some hundred tokens: only padding beyond
those costs time. So there are buckets for short prefills beside 8, 32, 128 and 256 decode rows, and
prefill is cut at a compiled size where its padding would take longer than the rest in the next
step: 4,100 tokens run as 4,096 and 4. Chunks are rounded up to tiles of 8 tokens, which prefill
attention joins to runs that fill a program. `python -m jengine.bench.padding` measures padding with
the scheduler alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from jengine.scheduler.lifecycle import Lifecycle
from jengine.scheduler.plan_builder import PlanBuilder

# Minimum saving for a cut: one part in so many of the step's time.
SMALL_PART = 16


class PromptCuts:
    """`sizes`: compiled numbers of prefill tokens, ascending; none: never cut. `full_step`: tokens
    (decodes included) below which a step takes no less time."""

    def __init__(self, sizes: tuple[int, ...], full_step: int) -> None:
        self._sizes = sizes
        self._full_step = full_step

    def limit(self, builder: PlanBuilder, requests: Lifecycle) -> None:
        """Limit the prompt tokens of a step, if it is better to run the rest in the next one."""
        if not self._sizes:
            return
        total = decodes = 0
        for request in requests.running:
            left = request.known_at_admission - request.num_computed
            if left > 0:
                total += builder.cost(left)
            else:
                decodes += 1
        most = (builder.budget - decodes) // builder.tile * builder.tile
        for length in first_lengths(requests):
            if total >= most:
                break
            total += builder.cost(length)
        builder.prompt_limit = self.cut(min(total, most), decodes)

    def cut(self, total: int, decodes: int) -> int:
        """Prefill tokens to run now: `total`, or the next smaller compiled size if that saves time.
        The remainder is padded in the next step too, unless decodes run with it."""
        above = bisect_left(self._sizes, total)
        if not 0 < above < len(self._sizes) or self._sizes[above] == total:
            return total
        now = self._sizes[above - 1]
        whole = self._time(decodes + self._sizes[above])
        rest = total - now
        if decodes:
            later = self._time(decodes + rest) - self._time(decodes)
        else:
            later = self._time(self._sizes[bisect_left(self._sizes, rest)])
        saved = whole - self._time(decodes + now) - later
        return now if saved * SMALL_PART > whole else total

    def _time(self, tokens: int) -> int:
        return max(tokens, self._full_step)


def first_lengths(requests: Lifecycle) -> Iterator[int]:
    """Numbers of known tokens of the waiting requests that free rows could take."""
    for request in requests.waiting.ahead(len(requests.free_rows)):
        yield request.num_known
