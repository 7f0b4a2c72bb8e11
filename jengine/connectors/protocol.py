"""The contract of connectors, which keep blocks of the KV cache further away than host memory.

A connector has two halves. That of the scheduler says what can be had; that of the worker reads and
writes. They may be in two processes, and share nothing but the place. Everything is named by its
content key, so what comes from outside is what the engine itself would have computed.

In a mesh of several processes there is a worker's half in each of them, which reads and writes the
piece of a block that its process has. The scheduler's half holds a content if all pieces are there.
A piece's name is "" where it is the whole block, and otherwise tells which part it is: equal names,
equal parts, in whatever engine. It belongs into the name of what is stored.

Blocks pass through slots of the host's memory: `Transfers` of a plan save device blocks there, from
where the worker writes them out. Fetches read them back into slots, and a later plan loads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from jengine.request import WireRequest


class SchedulerHalf(Protocol):
    """Answers the planning thread between two steps, so no method may block."""

    def source(self, wire: WireRequest) -> str | None:
        """Where to look for this request's blocks: passed to `holds` and `read`. None: nowhere; "":
        not specific to the request."""
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
    """Reads and writes blocks, called by threads beside the one that runs steps: calls may
    block."""

    def read(self, key: bytes, source: str) -> bytes | memoryview | None:
        """Return a block's bytes; None if it is missing or damaged."""
        ...

    def write(self, key: bytes, data: bytes) -> None:
        """Store a block's bytes. It may be evicted at any time."""
        ...

    def close(self) -> None:
        """Release all resources; nothing is read or written afterwards."""
        ...
