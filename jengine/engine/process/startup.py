"""Startup of a core as seen by its front: progress, then ready or an error.

In: startup messages, from the socket's thread. Out: the same, to the waiting thread, which also
wakes if the core dies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from jengine.engine.process.liveness import Liveness
from jengine.engine.process.to_front import NotReady, Progress, Ready
from jengine.errors import EngineDead

Tell = Callable[[Progress], None]
# Seconds without a message after which a starting core is given up.
START_SECONDS = 600.0


class Startup:
    """Startup messages received from a core."""

    def __init__(self, life: Liveness) -> None:
        self.ready: Ready | None = None  # set by the first wait
        self._life = life
        self._news: deque[Progress | Ready | NotReady] = deque()

    def note(self, news: Progress | Ready | NotReady) -> None:
        """Record a startup message."""
        with self._life.changed:
            self._news.append(news)
            self._life.changed.notify_all()

    def wait(self, tell: Tell | None, seconds: float) -> Ready:
        """Wait until the core is ready, reporting progress to `tell`. Raises the core's error, or
        EngineDead if it died or was silent for `seconds`."""
        while self.ready is None:
            match self._next(seconds):
                case None:
                    self._life.check()
                case Progress() as progress:
                    if tell is not None:
                        tell(progress)
                case NotReady(failure):
                    raise failure.error
                case Ready() as ready:
                    self.ready = ready
        return self.ready

    def wait_for_end(self, seconds: float) -> None:
        """Wait up to `seconds` for the core's reason for not starting, or its death."""
        with self._life.changed:
            self._life.changed.wait_for(lambda: self._life.failure or self._is_refused, seconds)

    def _next(self, seconds: float) -> Progress | Ready | NotReady | None:
        """The next message, or None if the core has died and none is left."""
        life = self._life
        with life.changed:
            if not life.changed.wait_for(lambda: self._news or life.failure, seconds):
                raise EngineDead(
                    f"the engine core has not become ready and has said nothing for "
                    f"{seconds:g} s. Its log may say why; a larger timeout waits longer."
                )
            return self._news.popleft() if self._news else None

    @property
    def _is_refused(self) -> bool:
        return any(isinstance(news, NotReady) for news in self._news)
