"""Chooses an engine core for a request: longest cached prefix, then least load.

In: a request, and what the cores tell of their caches and queues. Out: a core. Must not know how a
request is sent, or how it ends.
"""

from __future__ import annotations

from jengine.distributed.core_roster import CoreRoster
from jengine.distributed.router import Router
from jengine.errors import RequestError
from jengine.kvcache.contents import Contents
from jengine.request import Request, WireRequest
from jengine.scheduler.orders import Order

# A core that says nothing for so many seconds, or whose step takes that long, gets requests only
# if every other one does too.
SLOW = 5.0


class CorePlacement:
    """Chooses among the serving cores. Has no state of its own."""

    def __init__(
        self,
        roster: CoreRoster,
        router: Router,
        block_size: int,
        order: Order,
        *,
        stored_as: str,
    ) -> None:
        self._roster, self._router = roster, router
        self._block_size, self._stored_as = block_size, stored_as
        self._order = order

    def hashes(self, wire: WireRequest, weights_version: int) -> list[bytes]:
        """Hashes of a prompt's full blocks, excluding its last token, which is always computed."""
        if wire.skip_reading_prefix_cache:
            return []
        length = len(wire.prompt_token_ids)
        contents = Contents(self._block_size, weights_version, self._stored_as)
        return contents.of(Request(wire, length, 0), (length - 1) // self._block_size)

    def choose(self, wire: WireRequest, hashes: list[bytes]) -> int:
        """The core that the request names (`data_parallel_rank`), else the best for these block
        hashes."""
        if wire.replica is not None:
            if wire.replica not in self._roster.serving:
                raise RequestError(
                    f"data_parallel_rank {wire.replica} does not serve: it has ended or is about "
                    "to. Leave it out, or name another."
                )
            return wire.replica
        cores, among = self._roster.cores, self._brisk()
        found = [cores[i].contents.prefix(hashes) * self._block_size for i in among]
        loads = self._router.loads_for(self._order.delayed_by(wire))
        loads = [load + more for load, more in zip(loads, self._others(), strict=True)]
        return self._router.best_of(among, found, hashes, loads)

    def _brisk(self) -> list[int]:
        """The serving cores without a stalled step or stale state; all of them if every one
        stalls."""
        serving = self._roster.serving
        states = {i: self._roster.cores[i].state() for i in serving}
        return [i for i in serving if max(states[i].age, states[i].stepping) < SLOW] or serving

    def _others(self) -> list[int]:
        """Estimated tokens per core of requests from other front ends: their number from the core's
        queue lengths, times the mean length of this front end's requests."""
        own = self._router.counts
        tokens = sum(self._router.loads) // max(sum(own), 1) or self._block_size
        states = [core.state().counts for core in self._roster.cores]
        there = [counts.running + counts.waiting for counts in states]
        return [max(count - own[i], 0) * tokens for i, count in enumerate(there)]
