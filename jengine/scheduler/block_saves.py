"""Saves of published blocks to slots of the host's memory.

In: the blocks that the cache's pools publish. Out: the copies of a plan, each with its block and
slot pinned. Must not know requests, or how long something stays pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.host_slots import HostSlots
from jengine.kvcache.outbox import Outbox
from jengine.scheduler.block_copies import Copy


class BlockSaves:
    """Copies published blocks to host slots, from the outboxes of all groups."""

    def __init__(
        self,
        cache: CacheCoordinator,
        hosts: Sequence[HostSlots],
        forget: Callable[[bytes], None],
        *,
        saves: bool,
    ) -> None:
        """`forget`: drops a content from the connector. `saves=False`: nothing is copied to the
        host."""
        self.saved = 0  # blocks
        self._cache, self._hosts = cache, hosts
        self._outboxes = [Outbox(host, forget, saves=saves) for host in hosts]
        for group, outbox in zip(cache.groups, self._outboxes, strict=True):
            group.pool.outbox = outbox

    def take(self) -> list[Copy]:
        """Return copies for published blocks that the host lacks; their slots are pinned."""
        found: list[Copy] = []
        for index, group in enumerate(self._cache.groups):
            pool, host = group.pool, self._hosts[index]
            for block, key in self._outboxes[index].take():
                if host.find(key) is not None:
                    host.touch(key)
                elif pool.holds(block, key) and (slot := host.take(key)) is not None:
                    pool.pin(block)
                    host.pin(slot)
                    found.append(Copy(index, block, slot, key))
        self.saved += len(found)
        return found

    def forget_all(self) -> None:
        """Invalidate all contents in host slots, and drop pending saves."""
        for outbox in self._outboxes:
            outbox.forgotten_all()
