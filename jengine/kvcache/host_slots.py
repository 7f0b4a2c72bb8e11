"""LRU of host-memory slots by block content, for one cache group.

In: content keys. Out: slot numbers. Deterministic, so that all processes with host memory agree.
Must not know blocks, requests or memory.
"""

from __future__ import annotations

from collections import OrderedDict


class HostSlots:
    """Host-memory slots with LRU eviction; pinned slots are never evicted."""

    def __init__(self, count: int) -> None:
        self.total = count
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._free = list(range(count - 1, -1, -1))
        self._pins: dict[int, int] = {}
        self._forgotten: set[int] = set()  # pinned slots whose content cannot be found any more

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, key: bytes) -> int | None:
        return self._slots.get(key)

    def touch(self, key: bytes) -> None:
        """Mark a content as most recently used."""
        self._slots.move_to_end(key)

    def take(self, key: bytes) -> int | None:
        """Allocate a slot for a new content, evicting the least recently used. None if all are
        pinned."""
        assert key not in self._slots, "a content is kept twice"
        slot = self._free.pop() if self._free else self._evicted()
        if slot is not None:
            self._slots[key] = slot
        return slot

    def pin(self, slot: int) -> None:
        """Pin a slot for a planned copy."""
        self._pins[slot] = self._pins.get(slot, 0) + 1

    def unpin(self, slot: int) -> None:
        """The copy has completed."""
        left = self._pins.pop(slot) - 1
        if left:
            self._pins[slot] = left
        elif slot in self._forgotten:
            self._forgotten.discard(slot)
            self._free.append(slot)

    def forget(self, key: bytes) -> None:
        """Make a content unfindable, if it is there."""
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        if slot in self._pins:
            self._forgotten.add(slot)
        else:
            self._free.append(slot)

    def forget_all(self) -> None:
        """Make every content unfindable."""
        for key in list(self._slots):
            self.forget(key)

    def check(self) -> None:
        """Assert what must hold between any two calls."""
        slots = [*self._slots.values(), *self._free, *self._forgotten]
        assert sorted(slots) == list(range(self.total)), "slots were lost or have two contents"
        assert self._forgotten <= self._pins.keys(), "a forgotten slot waits for no copy"
        assert min(self._pins.values(), default=1) > 0, "a pin without a copy"
        assert not self._pins.keys() & set(self._free), "a copy uses a free slot"

    def _evicted(self) -> int | None:
        found = next((key for key, slot in self._slots.items() if slot not in self._pins), None)
        return None if found is None else self._slots.pop(found)
