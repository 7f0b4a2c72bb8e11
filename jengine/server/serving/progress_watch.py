"""Whether the engine makes progress: each core's step counter advances while it has requests.

In: an engine, sampled periodically. Out: seconds since the last progress, and stuck cores. An
answering socket is no sign of progress: a core stuck in a step still answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jengine.assembly.engine import Engine
from jengine.engine.core_state import PartState

# Multiple of the limit for a step that waits for a compile: minutes, for a large model.
COMPILING = 10


class ProgressWatch:
    """Tracks when each core's step counter last advanced."""

    def __init__(
        self,
        engine: Engine,
        paused: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._paused = paused
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # core -> (its steps, last advance)

    def look(self) -> None:
        """Sample the step counters. Never blocks."""
        now = self._clock()
        for core in self.cores:
            steps, since = self._seen.get(core.name, (-1, now))
            if core.steps != steps or self._is_idle(core):
                since = now
            self._seen[core.name] = (core.steps, since)

    @property
    def cores(self) -> Sequence[PartState]:
        state = self._engine.client.state()
        if state.parts:
            return state.parts
        work = int(self._engine.session.has_work)
        whole = PartState(
            name="the engine",
            steps=state.steps,
            open_requests=work,
            age=state.age,
            compiling=state.compiling,
        )
        return [whole]

    @property
    def age(self) -> float | None:
        """Seconds since the least recent progress of any core; None if all are idle."""
        ages = [self._age(core) for core in self.cores if not self._is_idle(core)]
        return round(max(ages), 3) if ages else None

    def stuck(self, limit: float) -> list[str]:
        """Cores that had work but no progress for `limit` seconds, or were silent."""
        return [
            core.name
            for core in self.cores
            if self._silence(core) > limit * (COMPILING if core.compiling else 1) > 0
        ]

    def _silence(self, core: PartState) -> float:
        if core.death is not None:
            return 0.0
        return core.age if self._is_idle(core) else max(core.age, self._age(core))

    def _age(self, core: PartState) -> float:
        now = self._clock()
        return now - self._seen.get(core.name, (0, now))[1]

    def _is_idle(self, core: PartState) -> bool:
        return self._paused() or not core.open_requests or core.death is not None
