"""Bursts: plans whose decodes run several times on the device before the host hears of them.

In: a draft. Out: how often it runs, and blocks for all of it. Nobody gives way to a burst: it is as
long as the shortest answer may still become, and as the free blocks last.
"""

from __future__ import annotations

from jengine.kvcache.manager import CacheManager
from jengine.request import Request
from jengine.scheduler.draft import Draft


class Bursts:
    """Lengthens drafts, to `most` runs of their decodes."""

    def __init__(self, most: int, cache: CacheManager) -> None:
        self.most = most
        self._cache = cache

    def lengthen(self, draft: Draft, num_waiting: int) -> None:
        """Let the draft run as often as may be: once while a request waits, or a prompt runs."""
        if self.most == 1 or num_waiting or draft.fills or draft.preempted:
            return
        repeats = min((self._room(request) for request in draft.decodes), default=1)
        while repeats > 1 and not self._cache.has_room(draft.decodes, repeats):
            repeats //= 2
        if repeats > 1:
            self._lengthen(draft, repeats)

    def _room(self, request: Request) -> int:
        """How often a request may run."""
        if request.wire.taps:  # what one run captures would be lost in the next
            return 1
        return min(self.most, request.cap - 1 - request.num_computed)

    def _lengthen(self, draft: Draft, repeats: int) -> None:
        draft.repeats = repeats
        for request in draft.decodes:
            blocks = self._cache.allocate(request, repeats)
            assert blocks is not None, "the cache had room for this burst a moment ago"
            draft.new_blocks += blocks
