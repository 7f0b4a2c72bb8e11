"""Whether the engine makes progress: steps go on while work is scheduled.

In: an engine, looked at from time to time. Out: seconds since the last sign of progress. That a
socket answers is no sign of it: an engine may be stuck in a step and answer all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from jengine.assembly.engine import Engine


class ProgressWatch:
    """Remembers when the engine's steps last went on."""

    def __init__(self, engine: Engine, paused: Callable[[], bool]) -> None:
        self._engine = engine
        self._paused = paused
        self._steps = -1
        self._since = time.monotonic()

    def look(self) -> None:
        """Note whether steps went on since the last look. It waits for nothing."""
        steps = self._engine.client.state().steps
        if steps != self._steps or self._is_idle:
            self._steps, self._since = steps, time.monotonic()

    @property
    def age(self) -> float | None:
        """Seconds since the last progress, as far as was looked; None if there is nothing to do."""
        return None if self._is_idle else round(time.monotonic() - self._since, 3)

    @property
    def _is_idle(self) -> bool:
        return self._paused() or not self._engine.session.has_work
