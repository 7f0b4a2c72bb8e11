"""Transfers of the scripted executor: slots of the host hold what blocks held when they were saved.

In: the transfers of plans. Out: blocks filled again, and which fetches have ended. Asserts that
what is loaded was saved before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jengine.config import CacheConfig
from jengine.plan import BlockCopies, Fetch, Forks, Transfers
from tests.executor.scripted_states import ScriptedStates

# A content that is further away: what a block held.
Content = Mapping[Any, int]


class ScriptedTransfers:
    """The slots of all groups, and a place further away that any number of executors may share."""

    def __init__(
        self,
        cache: CacheConfig,
        blocks: list[dict[tuple[int, int], int]],
        states: ScriptedStates,
        far: dict[bytes, Content] | None = None,
        arrives: Callable[[Fetch], bool | None] = lambda fetch: True,
    ) -> None:
        """`arrives` is asked with each plan: whether a fetch has succeeded; None: not yet."""
        self._block_size = cache.block_size
        self._blocks = blocks
        self._states = states
        self._far = {} if far is None else far
        self._arrives = arrives
        self._slots: list[dict[int, Content]] = [{} for _ in cache.groups]
        self._fetching: list[Fetch] = []

    def before(self, transfers: Transfers | None) -> dict[int, bool]:
        """What runs before a step: loads. The fetches that have ended by now."""
        if transfers is not None:
            if transfers.reset:
                self.reset()
            for copies in transfers.loads:
                self.load(copies)
        return self.ended()

    def after(self, transfers: Transfers | None) -> None:
        """What runs after a step: saves, and fetches that begin."""
        if transfers is None:
            return
        for copies in transfers.saves:
            self.save(copies)
        self.fetch(transfers.fetches)

    def reset(self) -> None:
        """Forget the fetches in progress; no slot holds anything."""
        self._fetching.clear()
        self._slots = [{} for _ in self._slots]

    def load(self, copies: BlockCopies) -> None:
        """Fill blocks from slots."""
        assert len(set(copies.blocks)) == len(copies.blocks), "a block is loaded twice"
        for block, slot in zip(copies.blocks, copies.slots, strict=True):
            assert slot in self._slots[copies.group], f"slot {slot} holds nothing"
            self._put(copies.group, block, self._slots[copies.group][slot])

    def fork(self, forks: Forks) -> None:
        """Copy what there is of blocks into others."""
        assert len(set(forks.targets)) == len(forks.targets), "two blocks are copied to one"
        found = [self._present(forks.group, block) for block in forks.sources]
        for block, content in zip(forks.targets, found, strict=True):
            self._put(forks.group, block, content)

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        """Begin to bring contents into slots."""
        for fetch in fetches:
            self._slots[fetch.group].pop(fetch.slot, None)
        self._fetching += fetches

    def ended(self) -> dict[int, bool]:
        """The fetches that have ended by now, and whether they succeeded."""
        done = {}
        for fetch in list(self._fetching):
            has_arrived = self._arrives(fetch)
            if has_arrived is None:
                continue
            done[fetch.number] = has_arrived and fetch.key in self._far
            if done[fetch.number]:
                self._slots[fetch.group][fetch.slot] = self._far[fetch.key]
            self._fetching.remove(fetch)
        return done

    def save(self, copies: BlockCopies) -> None:
        """Fill slots from blocks."""
        for index, (block, slot) in enumerate(zip(copies.blocks, copies.slots, strict=True)):
            content = self._get(copies.group, block)
            self._slots[copies.group][slot] = content
            if copies.keys:
                self._far[copies.keys[index]] = content

    def _get(self, group: int, block: int) -> Content:
        if group in self._states.held:
            return {0: self._states.held[group][block]}
        cached = self._blocks[group]
        return {offset: cached[block, offset] for offset in range(self._block_size)}

    def _present(self, group: int, block: int) -> Content:
        if group in self._states.held:
            return self._get(group, block)
        cached, offsets = self._blocks[group], range(self._block_size)
        return {one: cached[block, one] for one in offsets if (block, one) in cached}

    def _put(self, group: int, block: int, content: Content) -> None:
        if group in self._states.held:
            self._states.held[group][block] = content[0]
            return
        for offset, mark in content.items():
            self._blocks[group][block, offset] = mark
