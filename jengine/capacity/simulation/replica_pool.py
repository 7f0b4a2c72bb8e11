"""A pool of replicas with a real router, and the ways in which requests are spread over it.

In: WireRequests. Out: the replica of each. Must not know traces or clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from jengine.capacity.simulation.replica import Replica
from jengine.distributed.router import Placed, Router
from jengine.outputs import TokenDelta
from jengine.request import Request, WireRequest

# By cached prefix and load, as jengine routes; by load alone; in turns.
Routing = Literal["prefix", "load", "turns"]
ROUTINGS: tuple[Routing, ...] = ("prefix", "load", "turns")


class ReplicaChoice(NamedTuple):
    """The replica chosen for a request, with the block hashes computed so far."""

    replica: int
    hashes: Sequence[bytes] = ()


@dataclass
class ReplicaPool:
    """Identical replicas behind a router."""

    name: str
    replicas: list[Replica]
    routing: Routing
    dead: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)  # off, starting, or finishing what they have
    _next: int = 0

    def __post_init__(self) -> None:
        block_size = self.replicas[0].kind.cache.block_size
        self.router = Router(len(self.replicas), block_size)
        # With one replica there is nothing to choose, and in turns nothing to know.
        self.counts_load = len(self.replicas) > 1 and self.routing != "turns"

    @property
    def living(self) -> list[int]:
        """Indices of the replicas that take requests."""
        away = self.dead | self.closed
        return [i for i in range(len(self.replicas)) if i not in away]

    def place(self, wire: WireRequest) -> ReplicaChoice:
        """Route a request to a replica and count its load."""
        living = self.living
        if not self.counts_load or len(living) == 1:
            choice = ReplicaChoice(living[self._next % len(living)])
            self._next += 1
        else:
            choice = self._best(wire, living)
        if self.counts_load:
            length = len(wire.prompt_token_ids)
            placed = Placed(choice.replica, length, choice.hashes, wire.priority)
            self.router.enter(wire.request_id, placed)
        return choice

    def _best(self, wire: WireRequest, living: list[int]) -> ReplicaChoice:
        loads, found = self.router.loads, [0] * len(living)
        if self.routing == "load":
            return ReplicaChoice(self.router.best_of(living, found, (), loads))
        # The hash of a block is the same in every cache, so hashes are computed once.
        request = Request(wire, len(wire.prompt_token_ids), 0)
        found = [self.replicas[index].held(request) for index in living]
        hashes = request.block_hashes
        return ReplicaChoice(self.router.best_of(living, found, hashes, loads), hashes)

    @property
    def tell(self) -> Callable[[TokenDelta], None] | None:
        """Callback for later token deltas of a request; None if the router needs none."""
        return self.router.note if self.counts_load else None

    def lose(self, request_id: str) -> None:
        """Remove the load of a request that has not ended."""
        if self.counts_load and request_id in self.router:
            self.router.leave(request_id)
