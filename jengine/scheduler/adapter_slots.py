"""Device slots of LoRA adapters: which adapter each slot holds, and how many running requests use
it.

In: requests that start and leave. Out: each request's slot, which its plan passes to the runner. A
slot whose adapter has no running request is reassigned in LRU order.
"""

from __future__ import annotations

from jengine.request import Request


class AdapterSlots:
    """Device slots of LoRA adapters, numbered from 1; 0 stands for no adapter."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._slots: dict[str, int] = {}  # by adapter, the least recently used first
        self._users: dict[str, int] = {}  # running requests by adapter
        self._entered: list[str] = []
        self.num_starts = 0  # of requests with adapters

    @property
    def in_use(self) -> int:
        """Number of adapters with running requests."""
        return len(self._users)

    @property
    def num_takeable(self) -> int:
        """Slots that are empty or whose adapter has no running request."""
        return len(self._free) + len(self._slots) - len(self._users)

    @property
    def least_used(self) -> str:
        """The adapter in use with the fewest running requests."""
        return min(self._users, key=lambda adapter: self._users[adapter])

    def take_entered(self) -> list[str]:
        """Adapters that were given a slot since the last call."""
        entered, self._entered = self._entered, []
        return entered

    def have_room(self, request: Request) -> bool:
        """Whether the request's adapter has a slot or can get one."""
        adapter = request.wire.adapter
        return not adapter or adapter in self._slots or self.num_takeable > 0

    def take(self, request: Request) -> None:
        """Count the request as a user of its adapter's slot, assigning one if needed."""
        adapter = request.wire.adapter
        if not adapter:
            return
        self.num_starts += 1
        slot = self._slots.pop(adapter, 0)
        if not slot:
            slot = self._new_slot()
            self._entered.append(adapter)
        self._slots[adapter] = request.adapter_slot = slot
        self._users[adapter] = self._users.get(adapter, 0) + 1

    def give_back(self, request: Request) -> None:
        """Release the request's use of its adapter's slot."""
        if not request.adapter_slot:
            return
        request.adapter_slot = 0
        adapter = request.wire.adapter
        self._users[adapter] -= 1
        if not self._users[adapter]:
            del self._users[adapter]

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        unused = next(adapter for adapter in self._slots if adapter not in self._users)
        return self._slots.pop(unused)
