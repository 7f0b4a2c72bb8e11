"""Routes requests to data-parallel replicas by cached prefix, then by load.

In: how much of a prompt each replica has cached; the deltas of all requests. Out: a replica. Load
is the number of known tokens of unfinished requests. Must not know schedulers or devices.

A cached prefix is worth the tokens that it saves: the replica with the longest cached prefix (among
equals, the least loaded) is chosen among those whose load exceeds the least by no more than the
prefix and a quarter of the least. Seeds belong to requests, so tokens do not depend on the replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jengine.outputs import TokenDelta

# A replica may exceed the least load by this fraction (1/4) without a cached prefix.
UNEVEN = 4


def choose(loads: Sequence[int], hits: Sequence[int]) -> int:
    """The replica with the longest cached prefix, then the least load, then the first.

    Only among those whose load exceeds the least by at most the tokens that the prefix saves plus a
    quarter of the least.
    """
    least = min(loads)
    near = [i for i, load in enumerate(loads) if load - least <= hits[i] + least // UNEVEN]
    return min(near, key=lambda i: (-hits[i], loads[i], i))


class Placed(NamedTuple):
    """Replica and load of an unfinished request."""

    replica: int
    tokens: int
    hashes: Sequence[bytes]
    priority: int = 0


class Router:
    """Load per replica, and the prompt blocks it has cached or is computing."""

    def __init__(self, replicas: int, block_size: int) -> None:
        self.loads = [0] * replicas
        self.counts = [0] * replicas  # unfinished requests per replica
        self._block_size = block_size
        self._placed: dict[str, Placed] = {}
        # Block hashes of unfinished requests' prompts, which are or soon will be cached.
        self._coming: list[Counter[bytes]] = [Counter() for _ in range(replicas)]

    def grow(self) -> None:
        """Add an idle replica."""
        self.loads.append(0)
        self.counts.append(0)
        self._coming.append(Counter())

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._placed

    @property
    def requests(self) -> Mapping[str, Placed]:
        return self._placed

    def replica_for(self, found: Sequence[int], hashes: Sequence[bytes]) -> int:
        """The best replica for a prompt with these block hashes and cached tokens per replica."""
        return self.best_of(range(len(self.loads)), found, hashes, self.loads)

    def best_of(
        self,
        among: Sequence[int],
        found: Sequence[int],
        hashes: Sequence[bytes],
        loads: Sequence[int],
    ) -> int:
        """Choose among the replicas `among`. `found`: cached tokens of each of these; `loads`: of
        all replicas."""
        expected = self._expected(hashes)
        hits = [max(own, expected[i]) for i, own in zip(among, found, strict=True)]
        return among[choose([loads[i] for i in among], hits)]

    def loads_for(self, priority: int | None) -> list[int]:
        """Load per replica that could delay a request of this priority: excludes lower priorities.

        None: count all requests.
        """
        if priority is None:
            return list(self.loads)
        loads = [0] * len(self.loads)
        for placed in self._placed.values():
            if placed.priority <= priority:
                loads[placed.replica] += placed.tokens
        return loads

    def replica_of(self, request_id: str) -> int | None:
        """The replica of an unfinished request, else None."""
        placed = self._placed.get(request_id)
        return None if placed is None else placed.replica

    def enter(self, request_id: str, placed: Placed) -> None:
        """Add a request to its replica's load."""
        self._placed[request_id] = placed
        self.loads[placed.replica] += placed.tokens
        self.counts[placed.replica] += 1
        self._coming[placed.replica].update(placed.hashes)

    def note(self, delta: TokenDelta) -> None:
        """Update the load for a delta: more tokens, or the end."""
        placed = self._placed.get(delta.request_id)
        if placed is None:
            return
        if delta.finish_reason is not None:
            self.leave(delta.request_id)
            return
        count = len(delta.token_ids)
        self.loads[placed.replica] += count
        replica, tokens, hashes, priority = placed
        # Per token of every request, so without `_replace`, which takes four times as long.
        self._placed[delta.request_id] = Placed(replica, tokens + count, hashes, priority)

    def clear(self) -> None:
        for request_id in list(self._placed):
            self.leave(request_id)

    def leave(self, request_id: str) -> None:
        """Remove a finished request from its replica's load."""
        placed = self._placed.pop(request_id)
        self.loads[placed.replica] -= placed.tokens
        self.counts[placed.replica] -= 1
        coming = self._coming[placed.replica]
        coming.subtract(placed.hashes)
        for content in placed.hashes:
            if not coming[content]:
                del coming[content]

    def _expected(self, hashes: Sequence[bytes]) -> list[int]:
        """Per replica, the leading prompt tokens shared with its unfinished requests (soon
        cached)."""
        return [
            self._block_size * next((i for i, one in enumerate(hashes) if one not in coming),
                                    len(hashes))
            for coming in self._coming
        ]  # fmt: skip
