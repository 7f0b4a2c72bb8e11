"""How many prompt tokens a step runs, so that it fills a size that it is compiled for.

In: the running and waiting requests. Out: a limit in the PlanBuilder; what is beyond it runs in the
next step. Must not know blocks, prefix hits, or how a step is compiled.

GPU steps are filled. Any GPU step reads all weights, and some hundred tokens are computed in that
time: padding beyond those costs time. So there are buckets for short prefills beside 8, 32, 128 and
256 decode rows, and prompts are cut at compiled sizes where padding would take longer than the rest
in the next step: 4,100 tokens run as 4,096 and 4. Chunks are rounded up to 8 tokens, and prefill
attention joins such tiles to runs that fill a program. `python -m jengine.bench.padding` counts it
with the scheduler alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from jengine.scheduler.lifecycle import Lifecycle
from jengine.scheduler.plan_builder import PlanBuilder

# Prompts are cut where that saves more than one part in so many of the step.
SMALL_PART = 16


class PromptCuts:
    """Cuts at the compiled numbers of prefill tokens, smallest first; without any, nowhere.

    A step of fewer than `full_step` tokens, decodes included, takes no less time.
    """

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
        """The tokens that run now, of all that could. Some padding costs less than a cut, since
        the rest is padded as well unless decodes run with it."""
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
