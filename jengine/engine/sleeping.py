"""Which memory of an engine is asleep (sleep mode), as reported by workers. No jax."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from jengine.counts import Counts
from jengine.errors import EngineAsleep
from jengine.runner.report_types import WEIGHTS


class Sleeping:
    """Sleep state of one core; methods are called between steps."""

    def __init__(self) -> None:
        self.level = 0
        self.tags: frozenset[str] = frozenset()  # asleep in some worker

    def check_awake(self) -> None:
        if not self.tags:
            return
        if self.tags == {WEIGHTS} and self.level >= 2:
            raise EngineAsleep(
                "sleep(level=2) dropped the weights of this engine. Give it new ones with "
                "update_params(...), or call reload_weights()."
            )
        raise EngineAsleep(
            f"{', '.join(sorted(self.tags))} of this engine sleep. Call wake_up() first."
        )

    def note(self, tags: Iterable[Iterable[str]], level: int = 0) -> None:
        """Record each worker's sleeping tags; `level` is that of a sleep."""
        self.tags = frozenset().union(*tags)
        self.level = max(level, self.level) if self.tags else 0

    def note_weights(self) -> None:
        """Record that new parameters were given, so weights are awake."""
        self.note([self.tags - {WEIGHTS}])

    def noted(self, counts: Counts) -> Counts:
        """Add the sleep level to the core's counts."""
        return msgspec.structs.replace(counts, sleep_level=self.level) if self.tags else counts
