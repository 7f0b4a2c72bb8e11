"""A queued step of an executor, for the executor around it that does something as it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from jengine.executor.protocol import PendingOutput
from jengine.outputs import StepOutput


@final
class ReadStep:
    """The step, and how it is read."""

    __slots__ = ("_pending", "_read")

    def __init__(self, pending: PendingOutput, read: Callable[[PendingOutput], StepOutput]) -> None:
        self._pending = pending
        self._read = read

    @property
    def ready(self) -> bool:
        """Whether `result` returns without waiting."""
        return self._pending.ready

    @property
    def has_left(self) -> bool:
        """Whether nothing more has to be queued before it can be read."""
        return self._pending.has_left

    def result(self) -> StepOutput:
        """Wait for the step, and do what is to be done with its output. Called once."""
        return self._read(self._pending)
