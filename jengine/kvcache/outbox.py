"""The door of a block pool to the outside: blocks that may be copied away, contents that are gone.

In: the pool's events. Out: what the plan in the making may save. Must not know the pool.
"""

from __future__ import annotations

from collections.abc import Callable

from jengine.kvcache.host_slots import HostSlots


class Outbox:
    """Published blocks of one group that no plan has saved, and the slots of the host."""

    def __init__(self, host: HostSlots, forget: Callable[[bytes], None], *, saves: bool) -> None:
        """`forget` makes a content unfindable further away."""
        self._host = host
        self._forget = forget
        self._saves = saves
        self._published: list[tuple[int, bytes]] = []

    def published(self, block: int, key: bytes) -> None:
        """A block can be found, once the steps that are planned have run."""
        if self._saves:
            self._published.append((block, key))

    def forgotten(self, key: bytes) -> None:
        """A content must not be found again."""
        self._host.forget(key)
        self._forget(key)

    def forgotten_all(self) -> None:
        """No content may be found again."""
        self._published.clear()
        self._host.forget_all()

    def take(self) -> list[tuple[int, bytes]]:
        """The blocks published since the last call. Some may hold something else by now."""
        published, self._published = self._published, []
        return published
