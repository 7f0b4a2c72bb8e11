"""What the engine core needs of an executor: it runs plans, in order, without waiting."""

from __future__ import annotations

from typing import Any, Protocol

from jengine.outputs import StepOutput
from jengine.plan import Plan


class PendingOutput(Protocol):
    """A step that has been queued."""

    @property
    def ready(self) -> bool:
        """Whether nothing has to be waited for before `result` goes on."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether nothing more has to be queued before it can be read."""
        ...

    def result(self) -> StepOutput:
        """Wait for the step and read what it sampled."""
        ...


class Executor(Protocol):
    """Runs plans. A plan may rely on everything the plans submitted before it did."""

    def submit(self, plan: Plan) -> PendingOutput:
        """Queue the plan's step and return at once."""
        ...

    def update_weights(self, leaves: Any) -> None:
        """Use these parameters for every plan submitted from now on."""
        ...

    def shutdown(self) -> None:
        """Give memory back. No step is submitted afterwards; calling it twice is harmless."""
        ...
