"""Queue of a pool's published blocks, to be saved to host memory.

In: the pool's events. Out: what the plan being built may save. Must not know the pool.
"""

from __future__ import annotations

from collections.abc import Callable

from jengine.kvcache.host_slots import HostSlots


class BlockOutbox:
    """Published blocks of one group that are still to be saved to host slots."""

    def __init__(self, host: HostSlots, forget: Callable[[bytes], None], *, saves: bool) -> None:
        """`forget`: drops a content from the connector."""
        self._host = host
        self._forget = forget
        self._saves = saves
        self._published: list[tuple[int, bytes]] = []

    def published(self, block: int, key: bytes) -> None:
        """A block becomes findable once the planned steps have run."""
        if self._saves:
            self._published.append((block, key))

    def forgotten(self, key: bytes) -> None:
        """A content was invalidated."""
        self._host.forget(key)
        self._forget(key)

    def forgotten_all(self) -> None:
        """All contents were invalidated."""
        self._published.clear()
        self._host.forget_all()

    def take(self) -> list[tuple[int, bytes]]:
        """Blocks published since the last call. Some may have been reused since."""
        published, self._published = self._published, []
        return published
