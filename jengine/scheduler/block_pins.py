"""Pins of blocks and slots, held until the plans that copy them are committed.

In: what a plan copies, and blocks that waiting requests release. Out: unpinned blocks and slots.
Must not know why they are copied, or who waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.host_slots import HostSlots


class PinnedByPlan(NamedTuple):
    """(group, id) of the device blocks and host slots that a plan in flight pins."""

    step: int
    blocks: list[tuple[int, int]]
    slots: list[tuple[int, int]]


class BlockPins:
    """Pins of blocks and slots by plans in flight and by the plan being built."""

    def __init__(self, cache: CacheCoordinator, hosts: Sequence[HostSlots]) -> None:
        self._cache, self._hosts = cache, hosts
        self._plans: deque[PinnedByPlan] = deque()
        self._released: list[tuple[int, int]] = []  # blocks that were waiting requests' own

    @property
    def has_released(self) -> bool:
        """Whether requests have released blocks that the plan being built must keep pinned."""
        return bool(self._released)

    def release(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Transfer a request's pins to the plan being built."""
        self._released += blocks

    def planned(
        self, step: int, blocks: list[tuple[int, int]], slots: list[tuple[int, int]]
    ) -> None:
        """Transfer these pins, and those of released blocks, to the plan of `step`."""
        released, self._released = self._released, []
        self._plans.append(PinnedByPlan(step, released + blocks, slots))

    def done(self, step: int) -> None:
        """Unpin what plans up to `step` have pinned: they are committed."""
        while self._plans and self._plans[0].step <= step:
            plan = self._plans.popleft()
            self.unpin(plan.blocks, plan.slots)

    def unpin_released(self) -> None:
        """Unpin the released blocks: no plan can still need them."""
        released, self._released = self._released, []
        self.unpin(released, [])

    def reset(self) -> None:
        """Drop the pins of all plans in flight."""
        for plan in self._plans:
            self.unpin(plan.blocks, plan.slots)
        self._plans.clear()
        self.unpin_released()

    def unpin(self, blocks: Iterable[tuple[int, int]], slots: Iterable[tuple[int, int]]) -> None:
        """Unpin immediately."""
        for group, block in reversed(list(blocks)):
            self._cache.groups[group].pool.unpin(block)
        for group, slot in slots:
            self._hosts[group].unpin(slot)
