"""Runs plans in every process where only the first process has requests.

In: plans. Out: steps that all processes run. The others are told of each plan, each read and each
call; they have no requests to compare with these. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jengine.counts import Counts
from jengine.errors import UnsupportedFeature
from jengine.executor.multihost.channel import LeaderChannel, failing_together
from jengine.executor.multihost.executors import LeadingExecutor
from jengine.executor.multihost.messages import CallProcesses, StepDone
from jengine.executor.protocol import PendingOutput
from jengine.executor.read_step import ReadStep
from jengine.outputs import StepOutput
from jengine.plan import Plan


@dataclass
class Direction:
    """Marks an engine whose first process alone has requests; the others only run its plans."""

    # Told why, before the first process ends with all others.
    observers: list[Callable[[str], None]] = field(default_factory=list)


class DirectingExecutor:
    """The first process's executor: broadcasts each plan, read and call to the others."""

    def __init__(self, executor: LeadingExecutor, channel: LeaderChannel) -> None:
        self._executor = executor
        self._channel = channel
        self.health, self.shutdown = executor.health, executor.shutdown
        self.end_all = channel.end_all  # ends every process after a failure

    def submit(self, plan: Plan) -> PendingOutput:
        with failing_together(self._channel):
            return ReadStep(self._executor.submit(plan), self._read)

    def _read(self, step: PendingOutput) -> StepOutput:
        """Wait for the oldest unread step, here and in the others."""
        channel, executor = self._channel, self._executor
        while channel.read():
            pass
        with channel.inside_step(), failing_together(channel):
            output = step.result()
        executor.compare_samples()
        channel.broadcast(StepDone(executor.read, [], Counts()))
        return output

    def update_weights(self, values: Any) -> None:
        """Refused: other processes cannot address arrays of this one."""
        raise UnsupportedFeature(
            "the devices of this engine are of several processes, of which one alone was given "
            "these arrays. Change the files and call reload_weights, or make a new engine."
        )

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        self._channel.broadcast(CallProcesses(method, arguments))
        return self._executor.call_workers(method, arguments)
