"""Fetches of blocks from a connector into host-memory slots.

In: slots to fill, outputs of steps. Out: fetches that start with a plan, and contents being
fetched. A failed fetch is a cache miss. Must not know requests, or blocks of the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from jengine.kvcache.hashing import group_of
from jengine.kvcache.host_slots import HostSlots
from jengine.outputs import StepOutput
from jengine.plan import Fetch
from jengine.scheduler.external_blocks import ExternalBlocks


class SlotFetches:
    """Fetches in progress. Each pins its slot."""

    def __init__(self, hosts: Sequence[HostSlots], external: ExternalBlocks) -> None:
        self.fetched = self.failed = 0  # blocks
        self._hosts, self._external = hosts, external
        self._new: list[Fetch] = []  # that begin with the plan in the making
        self._open: dict[int, Fetch] = {}
        self._arriving: set[tuple[int, int]] = set()  # the slots of those
        self._next = 0

    @property
    def are_open(self) -> bool:
        """Whether any fetch is in progress."""
        return bool(self._open)

    def begin(self, key: bytes, slot: int, source: str) -> None:
        """Start fetching a content into a slot, with the plan being built."""
        group = group_of(key)
        fetch = Fetch(self._next, group, slot, key, source)
        self._next += 1
        self._hosts[group].pin(slot)
        self._open[fetch.number] = fetch
        self._arriving.add((group, slot))
        self._new.append(fetch)

    def is_coming(self, key: bytes) -> bool:
        """Whether this content is being fetched."""
        group = group_of(key)
        slot = self._hosts[group].find(key)
        return slot is not None and (group, slot) in self._arriving

    def take(self) -> list[Fetch]:
        """Fetches that start with the plan being built."""
        new, self._new = self._new, []
        return new

    def done(self, output: StepOutput) -> None:
        """Handle the fetches that a step's output reports as ended."""
        for number, succeeded in output.transfers_done.items():
            fetch = self._open.pop(number, None)
            if fetch is None:
                continue  # it began before a reset
            self._arriving.discard((fetch.group, fetch.slot))
            self._hosts[fetch.group].unpin(fetch.slot)
            self.fetched += succeeded
            if not succeeded:
                self.failed += 1
                self._forget_slot(fetch)
                self._external.lost(fetch.key, fetch.source)

    def reset(self) -> None:
        """Forget all fetches, with the plans in flight that started them."""
        for fetch in self._open.values():
            self._hosts[fetch.group].unpin(fetch.slot)
        self._new.clear()
        self._open.clear()
        self._arriving.clear()

    def _forget_slot(self, fetch: Fetch) -> None:
        host = self._hosts[fetch.group]
        if host.find(fetch.key) == fetch.slot:
            host.forget(fetch.key)
