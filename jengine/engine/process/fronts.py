"""Request ids of several fronts of one core, renamed so that they cannot clash.

In: fronts' wire requests and the core's deltas. Out: requests under core ids, and each front's
deltas under its own ids. Must not know sockets or steps.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from jengine.outputs import TokenDelta
from jengine.request import WireRequest


class FrontRequests:
    """One front: its number, used in core ids, and its open requests."""

    def __init__(self, number: int, *, takes_logs: bool, takes_contents: bool) -> None:
        self.number = number
        self.takes_logs = takes_logs
        self.takes_contents = takes_contents
        self.open: set[str] = set()  # by the front's own names


class Fronts:
    """All fronts by connection identity. Thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._fronts: dict[bytes, FrontRequests] = {}
        self._owners: dict[str, tuple[bytes, str]] = {}  # core's name -> front, the front's name
        self._lock = threading.Lock()

    def __contains__(self, identity: bytes) -> bool:
        return identity in self._fronts

    @property
    def identities(self) -> list[bytes]:
        with self._lock:
            return list(self._fronts)

    @property
    def log_takers(self) -> list[bytes]:
        """Identities of fronts that receive the core's log."""
        with self._lock:
            return [identity for identity, front in self._fronts.items() if front.takes_logs]

    @property
    def content_takers(self) -> list[bytes]:
        """Identities of fronts that receive the cache's contents (block hashes)."""
        with self._lock:
            return [identity for identity, front in self._fronts.items() if front.takes_contents]

    def enter(self, identity: bytes, *, takes_logs: bool, takes_contents: bool = False) -> None:
        """Register a front; idempotent."""
        with self._lock:
            if identity not in self._fronts:
                self._fronts[identity] = FrontRequests(
                    next(self._numbers), takes_logs=takes_logs, takes_contents=takes_contents
                )

    def leave(self, identity: bytes) -> list[str]:
        """Remove a front. Returns the core ids of its open requests, to be aborted."""
        with self._lock:
            front = self._fronts.pop(identity, None)
            names = [] if front is None else [_name(front, own) for own in front.open]
            for name in names:
                del self._owners[name]
            return names

    def take(self, identity: bytes, wire: WireRequest) -> WireRequest | None:
        """Rename a front's request to its core id; None if the front already uses this id."""
        with self._lock:
            front = self._fronts[identity]
            own = wire.request_id
            if own in front.open:
                return None
            front.open.add(own)
            name = _name(front, own)
            self._owners[name] = (identity, own)
        return msgspec.structs.replace(wire, request_id=name)

    def name_of(self, identity: bytes, request_id: str) -> str | None:
        """Core id of a front's open request, or None."""
        with self._lock:
            front = self._fronts.get(identity)
            known = front is not None and request_id in front.open
            return _name(front, request_id) if front is not None and known else None

    def sorted(self, deltas: Iterable[TokenDelta]) -> dict[bytes, list[TokenDelta]]:
        """Split deltas by front, under the fronts' own ids; those of fronts that left are
        dropped."""
        found: dict[bytes, list[TokenDelta]] = defaultdict(list)
        with self._lock:
            for delta in deltas:
                owner = self._owners.get(delta.request_id)
                if owner is None:
                    continue
                identity, own = owner
                if delta.finish_reason is not None:
                    del self._owners[delta.request_id]
                    self._fronts[identity].open.discard(own)
                delta.request_id = own
                found[identity].append(delta)
        return found


def _name(front: FrontRequests, own: str) -> str:
    return f"{front.number}:{own}"
