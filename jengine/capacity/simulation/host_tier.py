"""Host-memory KV tier: an LRU of evicted blocks by content.

In: the journal of a cache. Out: how much of a prompt can be fetched. It receives every block
evicted from the first cache group. Must not know how long a copy takes.
"""

from __future__ import annotations

from jengine.kvcache.content_journal import STORED
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import Request


class HostTier:
    """Host-memory KV tier: a bounded set of block hashes."""

    def __init__(self, cache: CacheCoordinator, blocks: int) -> None:
        self._journal = cache.listeners.record()
        self._block_size = cache.block_size
        self._most = blocks
        self._hashes: dict[bytes, None] = {}  # the least recently used first

    def beyond(self, request: Request, found: int) -> int:
        """Tokens cached in host memory behind a device prefix of `found` tokens, without the last
        known one.

        The request's hashes are known as far as its prefix was looked up.
        """
        self._follow()
        size = self._block_size
        last = (request.num_known - 1) // size
        hashes = request.block_hashes[found // size : last]
        count = next((i for i, one in enumerate(hashes) if one not in self._hashes), len(hashes))
        for one in hashes[:count]:
            del self._hashes[one]
            self._hashes[one] = None
        return count * size

    def _follow(self) -> None:
        """Insert what the device cache has evicted since the last call."""
        held = self._hashes
        for change in self._journal.take():
            content = change[1:]
            held.pop(content, None)
            if change[:1] != STORED:
                held[content] = None
        for _ in range(len(held) - self._most):
            del held[next(iter(held))]
