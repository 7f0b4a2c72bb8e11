"""The local executor: one process, all the devices it sees, steps queued straight to the runner."""

from __future__ import annotations

from jengine.errors import EngineDead
from jengine.plan import Plan
from jengine.runner.runner import PendingStep, Runner
from jengine.runner.step import Leaves


class LocalExecutor:
    """Owns the runner, and with it the device memory, until it is shut down."""

    def __init__(self, runner: Runner) -> None:
        self._runner: Runner | None = runner

    @property
    def runner(self) -> Runner:
        """The runner, while there is one."""
        if self._runner is None:
            raise EngineDead("this engine was shut down. Create a new one.")
        return self._runner

    def submit(self, plan: Plan) -> PendingStep:
        """Queue the plan's step."""
        return self.runner.submit(plan)

    def update_weights(self, leaves: Leaves) -> None:
        """Use these parameters from the next plan on."""
        self.runner.update_leaves(leaves)

    def shutdown(self) -> None:
        """Drop the runner; its arrays go with the last step in flight."""
        self._runner = None
