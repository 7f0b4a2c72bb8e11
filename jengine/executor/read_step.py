"""PendingOutput that transforms its output when read, for executors that wrap another."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from jengine.executor.protocol import PendingOutput
from jengine.outputs import StepOutput


@final
class ReadStep:
    """Wraps a pending step; `read` produces its output."""

    __slots__ = ("_pending", "_read")

    def __init__(self, pending: PendingOutput, read: Callable[[PendingOutput], StepOutput]) -> None:
        self._pending = pending
        self._read = read

    @property
    def ready(self) -> bool:
        return self._pending.ready

    @property
    def has_left(self) -> bool:
        return self._pending.has_left

    def result(self) -> StepOutput:
        """Wait for the step and return the transformed output. Call once."""
        return self._read(self._pending)
