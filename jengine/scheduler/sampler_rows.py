"""The pool of sampler state for requests with penalties, biases, masks or ids to score.

Like rows and blocks it is a limit that requests wait for in line. A pool of fixed size rather than
one that grows: growing would change the shape of the step's state, so that every program would be
compiled again while requests run, and memory would have to be kept free for it all the same.
"""

from __future__ import annotations

import heapq

from jengine.request import Request


class SamplerRows:
    """Which rows of the pool are free."""

    def __init__(self, count: int) -> None:
        self._free = list(range(1, count + 1))  # 0 stands for none

    def have_room(self, request: Request) -> bool:
        """Whether this request can run now."""
        return bool(self._free) or not request.wire.sampling.has_sampler_state

    def take(self, request: Request) -> None:
        """Give a request that starts the row that it needs, if it needs one."""
        if request.wire.sampling.has_sampler_state:
            request.sampler_row = heapq.heappop(self._free)

    def give_back(self, request: Request) -> None:
        """Take the row of a request that no longer runs."""
        if request.sampler_row:
            heapq.heappush(self._free, request.sampler_row)
            request.sampler_row = 0
