"""Copies of blocks between the device, the host's memory and connectors, as parts of plans.

In: requests that wait, and the blocks that were published. Out: `Transfers` of plans, and whether a
request may begin. What is loaded becomes cached content, which requests find as any other prefix,
so tables and counters of requests know nothing of it. Must not know bytes.

    published ──save──► slot of the host ──load──► pinned block, published ──► prefix hit
                          ▲ │ written out and fetched by the connector
                          └─▼

A block, and the slot that it is copied to or from, stay pinned until the plan is committed.
`BlockSaves`, `block_loads` and `slot_fetches` do what the arrows say, `block_pins` keeps the pins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from jengine.connectors.protocol import SchedulerHalf
from jengine.counts import CopyCounts
from jengine.kvcache.block_outbox import BlockOutbox
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.kvcache.host_slots import HostSlots
from jengine.outputs import StepOutput
from jengine.plan import Transfers
from jengine.request import Request
from jengine.scheduler.block_copies import Copy, by_group
from jengine.scheduler.block_loads import BlockLoads
from jengine.scheduler.block_pins import BlockPins
from jengine.scheduler.copy_costs import CopyCosts
from jengine.scheduler.external_blocks import ExternalBlocks
from jengine.scheduler.external_hits import ExternalHits
from jengine.scheduler.recorder import Recorder
from jengine.scheduler.slot_fetches import SlotFetches


class TieredTransfers:
    """`BlockTransfers` over host memory and an optional connector: saves published blocks, and
    loads blocks that waiting requests lack."""

    def __init__(
        self,
        cache: CacheCoordinator,
        slots: Sequence[int],
        most_loads: int,
        connector: SchedulerHalf | None = None,
        *,
        saves: bool = True,
        loads: bool = True,
        costs: CopyCosts | None = None,
        block_bytes: Sequence[int] = (),
    ) -> None:
        """`slots` of the host per group; a plan loads at most `most_loads` blocks. `costs` decide
        whether preempted requests get theirs back; by default they do. Copies count as 0 bytes
        where `block_bytes` of each group are not given."""
        self._block_bytes = block_bytes or (0,) * len(slots)
        self._loaded_bytes = self._stored_bytes = 0
        self._costs = costs or CopyCosts()
        self._hosts = [HostSlots(count) for count in slots]
        self._may_load = loads
        self._external = ExternalBlocks(cache, connector)
        self._pins = BlockPins(cache, self._hosts)
        self._saves = BlockSaves(cache, self._hosts, self._external.forget, saves=saves)
        self._fetches = SlotFetches(self._hosts, self._external)
        self._loads = BlockLoads(
            cache,
            self._hosts,
            self._external,
            self._fetches,
            self._pins,
            most_loads,
            self._costs,
        )
        self._is_reset = False

    @property
    def hits(self) -> ExternalHits:
        return self._loads.hits

    @property
    def counts(self) -> CopyCounts:
        return CopyCounts(
            loaded_bytes=self._loaded_bytes,
            stored_bytes=self._stored_bytes,
            fetched=self.fetched,
            failed=self.failed,
            used_slots=sum(map(len, self._hosts)),
            slots=sum(host.total for host in self._hosts),
        )

    def use(self, recorder: Recorder, wake: Callable[[Hashable], None], rows: int) -> None:
        self._costs.use(recorder)
        self._loads.use(wake, rows)

    @property
    def num_loading(self) -> int:
        """Requests that wait for blocks to be loaded."""
        return self._loads.num_loading

    @property
    def loaded(self) -> int:
        """Blocks loaded so far."""
        return self._loads.loaded

    @property
    def saved(self) -> int:
        """Blocks saved so far."""
        return self._saves.saved

    @property
    def fetched(self) -> int:
        """Blocks that a connector has fetched."""
        return self._fetches.fetched

    @property
    def failed(self) -> int:
        """Blocks that a connector failed to fetch."""
        return self._fetches.failed

    def awaited(self, request: Request) -> Hashable | None:
        return self._loads.awaited(request) if self._may_load else None

    def take(self, step: int, *, idle: bool) -> Transfers | None:
        copies, saves = self._loads.take(), self._saves.take()
        fetches = self._fetches.take()
        reset, self._is_reset = self._is_reset, False
        waits = idle and self._fetches.are_open
        if not (copies or saves or fetches or reset or self._pins.has_released or waits):
            return None
        self._loaded_bytes += sum(self._block_bytes[one.group] for one in copies)
        self._stored_bytes += sum(self._block_bytes[one.group] for one in saves)
        blocks = [(one.group, one.block) for one in saves]
        slots = [(one.group, one.slot) for one in (*copies, *saves)]
        self._pins.planned(step, blocks, slots)
        named = self._external.are_named
        return Transfers(by_group(copies), by_group(saves, named=named), fetches, reset)

    def done(self, step: int, output: StepOutput) -> None:
        self._pins.done(step)
        self._fetches.done(output)
        if output.transfers_done:
            self._loads.fetched()

    def finished(self, request: Request) -> dict[str, Any] | None:
        return self._external.finished(request)

    def withdraw(self, *, idle: bool) -> None:
        self._loads.end_all()
        if idle:
            self._pins.unpin_released()

    def forget(self) -> None:
        self.withdraw(idle=False)
        self._loads.ask_anew()
        self._external.forget_all()

    def reset(self) -> None:
        self._loads.end_all()
        self._pins.reset()
        self._loads.reset()
        self._fetches.reset()
        self._saves.forget_all()
        self._is_reset = True

    def check(self) -> None:
        """Assert that every slot is accounted for."""
        for host in self._hosts:
            host.check()


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
        self._outboxes = [BlockOutbox(host, forget, saves=saves) for host in hosts]
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
