"""Those outside who follow which blocks can be found: journals of routers, logs of events.

In: a log to tell, and whose blocks were published. Out: nothing; the pools tell journals and logs
themselves. Must not know who reads them, or how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jengine.config import CacheConfig
from jengine.kvcache.content_journal import ContentJournal
from jengine.kvcache.event_log import EventLog
from jengine.kvcache.group_cache import GroupCache
from jengine.request import Request


class ContentListeners:
    """Connects the groups' pools with a journal and a log. Without these, nobody is told."""

    def __init__(self, config: CacheConfig, groups: Sequence[GroupCache]) -> None:
        self._states = [group.spec.is_state for group in config.groups]
        self._groups = groups
        self._events: EventLog | None = None
        self._close: Callable[[], None] | None = None

    def record(self) -> ContentJournal:
        """A journal of the contents of the first group, from now on."""
        journal = ContentJournal()
        self._groups[0].record(journal)
        return journal

    def tell(self, events: EventLog, close: Callable[[], None]) -> None:
        """Tell others from now on which blocks can be found; `close` ends that."""
        self._events, self._close = events, close
        for is_state, group in zip(self._states, self._groups, strict=True):
            if not is_state:
                group.pool.events = events

    def close(self) -> None:
        """Tell nobody any more."""
        if self._close is not None:
            self._close()
        self._events = self._close = None
        for group in self._groups:
            group.pool.events = None

    def explain(self, request: Request) -> None:
        """Blocks that were published since the last call are this request's."""
        if self._events is not None:
            self._events.explain(request)

    def step_ended(self) -> None:
        """Send what has happened in a step."""
        if self._events is not None:
            self._events.flush()

    def cleared(self) -> None:
        """No content can be found any more."""
        if self._events is not None:
            self._events.cleared()
