"""Subscribers to a cache's contents: routers' journals, and KV event logs.

In: an event log, and whose blocks were published. Out: nothing; pools write to journals and logs
directly. Must not know who reads them, or how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jengine.config import CacheConfig
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.event_log import EventLog
from jengine.kvcache.group_cache import GroupCache
from jengine.request import Request


class ContentListeners:
    """Forwards the pools' changes to a journal and an event log, if there are any."""

    def __init__(self, config: CacheConfig, groups: Sequence[GroupCache]) -> None:
        self._states = [group.spec.is_state for group in config.groups]
        self._groups = groups
        self._events: EventLog | None = None
        self._close: Callable[[], None] | None = None

    def record(self) -> ContentJournal:
        """Start a journal of the first group's contents."""
        journal = ContentJournal()
        self._groups[0].record(journal)
        return journal

    def tell(self, events: EventLog, close: Callable[[], None]) -> None:
        """Start to publish KV events; `close` stops the publisher."""
        self._events, self._close = events, close
        for is_state, group in zip(self._states, self._groups, strict=True):
            if not is_state:
                group.pool.events = events

    def close(self) -> None:
        """Stop publishing."""
        if self._close is not None:
            self._close()
        self._events = self._close = None
        for group in self._groups:
            group.pool.events = None

    def explain(self, request: Request) -> None:
        """Attribute the blocks published since the last call to this request."""
        if self._events is not None:
            self._events.explain(request)

    def step_ended(self) -> None:
        """Publish the step's events."""
        if self._events is not None:
            self._events.flush()

    def cleared(self) -> None:
        """Publish that the whole cache was cleared."""
        if self._events is not None:
            self._events.cleared()
