"""The interface of connectors, which store KV cache blocks beyond host memory.

A connector has two halves, possibly in two processes: the scheduler's looks blocks up, the worker's
reads and writes them. They share nothing but the storage. Blocks are identified by content key, so
a fetched block is what the engine itself would have computed.

In a mesh of several processes each has a worker half, which reads and writes its shard of a block;
the scheduler half reports a block only if all shards are stored. A shard's name ("" for a whole
block) says which part it is: equal names are equal parts in any engine, so the name must be part of
the storage key.

Blocks pass through slots in host memory: `Transfers` of a plan save device blocks to slots, from
where the worker writes them; fetches read blocks into slots, and a later plan loads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from jengine.request import WireRequest


class SchedulerHalf(Protocol):
    """Called by the scheduler's thread between steps, so no method may block."""

    def source(self, wire: WireRequest) -> str | None:
        """Source of this request's blocks, passed to `holds` and `read`. None: none; "": not
        request-specific."""
        ...

    def holds(self, key: bytes, source: str) -> bool:
        """Whether the block with this content key can probably be fetched. A fetch may still
        fail."""
        ...

    def lost(self, key: bytes, source: str) -> None:
        """Called when a fetch of this block has failed."""
        ...

    def forget(self, key: bytes) -> None:
        """Discard a block whose bytes must not be used again."""
        ...

    def finished(self, wire: WireRequest, num_tokens: int) -> Mapping[str, Any]:
        """Entries for the finished request's `kv_transfer_params`; empty: none."""
        ...

    def reset(self) -> None:
        """Discard everything stored so far, as after an update of the weights."""
        ...


class WorkerHalf(Protocol):
    """Called by I/O threads, so methods may block."""

    def read(self, key: bytes, source: str) -> bytes | memoryview | None:
        """Return a block's bytes; None if it is missing or damaged."""
        ...

    def write(self, key: bytes, data: bytes) -> None:
        """Store a block's bytes. It may be evicted at any time."""
        ...

    def close(self) -> None:
        """Release all resources; nothing is read or written afterwards."""
        ...
