"""What of an engine sleeps, and how it falls asleep and wakes: calls to its workers between steps.

In: a core, and what is to sleep or wake. Out: the last deltas before it slept. No jax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jengine.counts import Counts
from jengine.engine.protocol import Core
from jengine.errors import EngineAsleep
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.outputs import TokenDelta
from jengine.runner.report_types import WEIGHTS


class Sleeping:
    """Of one core. Its methods are called between two steps."""

    def __init__(self) -> None:
        self.level = 0
        self.tags: frozenset[str] = frozenset()  # what sleeps

    def check_awake(self) -> None:
        """Raise EngineAsleep if anything sleeps."""
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

    def sleep(self, core: Core, level: int, tags: Sequence[str]) -> list[TokenDelta]:
        """Free the memory of what the tags name, once all steps in flight have been read."""
        deltas = self._without_blocks(core)
        self._call(core, "sleep", level=level, tags=list(tags))
        self.level = max(level, self.level)
        return deltas

    def wake_up(self, core: Core, tags: Sequence[str]) -> bool:
        """Bring back what the tags name. Whether nothing sleeps any more."""
        self._call(core, "wake_up", tags=list(tags))
        return not self.tags

    def reload_weights(self, core: Core) -> list[TokenDelta]:
        """Read the parameters again. Cached blocks may be of other ones, so they are forgotten."""
        deltas = self._without_blocks(core)
        self._call(core, "reload_weights")
        return deltas

    def note_weights(self) -> None:
        """Other parameters were given: those do not sleep."""
        self._note(self.tags - {WEIGHTS})

    def noted(self, counts: Counts) -> Counts:
        """The core's counts, which say that it sleeps if it does."""
        return msgspec.structs.replace(counts, sleep_level=self.level) if self.tags else counts

    def _without_blocks(self, core: Core) -> list[TokenDelta]:
        """Read the steps in flight and take all blocks from requests, which keep their tokens."""
        deltas = core.drain()
        emptied = core.reset_prefix_cache(reset_running_requests=True)
        assert emptied, "no request has blocks once all are preempted"
        return deltas

    def _call(self, core: Core, method: str, **arguments: Any) -> None:
        answers = core.call_workers(method, encoded_arguments(method, arguments))
        self._note(frozenset().union(*decoded_answers(method, answers)))

    def _note(self, tags: frozenset[str]) -> None:
        self.tags = tags
        self.level = self.level if tags else 0
