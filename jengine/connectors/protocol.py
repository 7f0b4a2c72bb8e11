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
    """Asked between two steps by the thread that plans them: every answer is immediate."""

    def source(self, wire: WireRequest) -> str | None:
        """Where this request's blocks may be; "": anywhere; None: it has none outside."""
        ...

    def holds(self, key: bytes, source: str) -> bool:
        """Whether a content can be fetched, as far as is known. It may still fail."""
        ...

    def lost(self, key: bytes, source: str) -> None:
        """A fetch has failed."""
        ...

    def forget(self, key: bytes) -> None:
        """A content is not to be trusted: it must not be found again."""
        ...

    def finished(self, wire: WireRequest, num_tokens: int) -> Mapping[str, Any]:
        """A request has its answer: what this says in `kv_transfer_params`; empty: nothing."""
        ...

    def reset(self) -> None:
        """Nothing that was kept before may be found again."""
        ...


class WorkerHalf(Protocol):
    """Called by threads beside the one that runs steps, so every call may take its time."""

    def read(self, key: bytes, source: str) -> bytes | memoryview | None:
        """The bytes of a content; None if they are not to be had. What is damaged is not there."""
        ...

    def write(self, key: bytes, data: bytes) -> None:
        """Keep the bytes of a content. They may be forgotten at any time."""
        ...

    def close(self) -> None:
        """Release what is held. Nothing is read or written afterwards."""
        ...
