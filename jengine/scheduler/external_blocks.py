"""Blocks of this engine that a connector stores, under the names of the initial weights.

In: requests and content keys. Out: what can be fetched, and a request's `kv_transfer_params`. Finds
nothing without a connector, or after a weight update: those blocks have no shared name. Must not
know slots, or blocks of the device.
"""

from __future__ import annotations

from typing import Any

from jengine.connectors.protocol import SchedulerHalf
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import Request


class ExternalBlocks:
    """The scheduler half of a connector, or a stand-in without one."""

    def __init__(self, cache: CacheCoordinator, connector: SchedulerHalf | None) -> None:
        self._cache, self._connector = cache, connector
        self._version = cache.weights_version

    @property
    def are_named(self) -> bool:
        """Whether blocks computed now are stored under the connector's names: not after an update
        of the weights."""
        return self._connector is not None and self._cache.weights_version == self._version

    def source(self, request: Request) -> str | None:
        """Source of the request's blocks, as `SchedulerHalf.source`; None without a connector."""
        source = None if self._connector is None else self._connector.source(request.wire)
        return source if self.are_named else None

    def holds(self, key: bytes, source: str | None) -> bool:
        """Whether a content can be fetched from there, as far as is known."""
        if source is None or self._connector is None:
            return False
        return self._connector.holds(key, source)

    def lost(self, key: bytes, source: str) -> None:
        """Record a failed fetch."""
        if self._connector is not None:
            self._connector.lost(key, source)

    def forget(self, key: bytes) -> None:
        """Remove a content, which must not be found again."""
        if self._connector is not None:
            self._connector.forget(key)

    def forget_all(self) -> None:
        """Discard everything the connector has stored."""
        if self._connector is not None:
            self._connector.reset()

    def finished(self, request: Request) -> dict[str, Any] | None:
        """The connector's entries for the finished request's `kv_transfer_params`; None if
        empty."""
        if self._connector is None or not self.are_named:
            return None
        return dict(self._connector.finished(request.wire, request.num_known)) or None
