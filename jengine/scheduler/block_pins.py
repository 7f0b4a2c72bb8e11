"""Blocks and slots that stay pinned until the plans that copy them are committed.

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
    """What the plan of a step keeps pinned: blocks and slots, each after its group."""

    step: int
    blocks: list[tuple[int, int]]
    slots: list[tuple[int, int]]


class BlockPins:
    """Per plan in flight what it keeps pinned, and what the plan in the making will."""

    def __init__(self, cache: CacheCoordinator, hosts: Sequence[HostSlots]) -> None:
        self._cache, self._hosts = cache, hosts
        self._plans: deque[PinnedByPlan] = deque()
        self._released: list[tuple[int, int]] = []  # blocks that were waiting requests' own

    @property
    def has_released(self) -> bool:
        """Whether the plan in the making has released blocks to keep."""
        return bool(self._released)

    def release(self, blocks: Iterable[tuple[int, int]]) -> None:
        """A request does not need these blocks pinned any more; the plan in the making may."""
        self._released += blocks

    def planned(
        self, step: int, blocks: list[tuple[int, int]], slots: list[tuple[int, int]]
    ) -> None:
        """The plan of this step keeps these pinned, and what was released before it."""
        released, self._released = self._released, []
        self._plans.append(PinnedByPlan(step, released + blocks, slots))

    def done(self, step: int) -> None:
        """The plans up to this step are committed."""
        while self._plans and self._plans[0].step <= step:
            plan = self._plans.popleft()
            self.unpin(plan.blocks, plan.slots)

    def unpin_released(self) -> None:
        """There is no plan that could need the released blocks."""
        released, self._released = self._released, []
        self.unpin(released, [])

    def reset(self) -> None:
        """The plans in flight are forgotten."""
        for plan in self._plans:
            self.unpin(plan.blocks, plan.slots)
        self._plans.clear()
        self.unpin_released()

    def unpin(self, blocks: Iterable[tuple[int, int]], slots: Iterable[tuple[int, int]]) -> None:
        """Unpin these now."""
        for group, block in reversed(list(blocks)):
            self._cache.groups[group].pool.unpin(block)
        for group, slot in slots:
            self._hosts[group].unpin(slot)
