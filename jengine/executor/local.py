"""The local executor: one process, steps queued directly to its runner."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from jengine.errors import EngineDead
from jengine.executor.protocol import WorkerHealth
from jengine.executor.worker_calls import answer
from jengine.plan import Plan
from jengine.runner.runner import PlanRunner, StepHandle


class LocalExecutor:
    """Owns the runner, and with it the device memory, until it is shut down."""

    def __init__(self, runner: PlanRunner) -> None:
        self.step = -1  # the last one begun
        self._runner: PlanRunner | None = runner

    @property
    def runner(self) -> PlanRunner:
        """The runner, while there is one."""
        if self._runner is None:
            raise EngineDead("this engine was shut down. Create a new one.")
        return self._runner

    def submit(self, plan: Plan) -> StepHandle:
        """Queue the plan's step."""
        self.step = plan.step
        return self.runner.submit(plan)

    def update_weights(self, values: Mapping[str, Any]) -> None:
        """Use these parameters from the next plan on."""
        self.runner.update_parameters(values)

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """The answer of this one process."""
        return [answer(self.runner.loaded, method, arguments)]

    def health(self) -> list[WorkerHealth]:
        """This process, which is alive by asking."""
        return [WorkerHealth(0, this_process(), self.step, 0.0)]

    def shutdown(self) -> None:
        """Drop the runner; its arrays are freed after the last step in flight."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.loaded.close()


def this_process() -> str:
    """This host and process, for people."""
    return f"{platform.node()} process {os.getpid()}"
