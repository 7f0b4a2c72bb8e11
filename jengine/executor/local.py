"""The local executor: one process, steps queued directly to its runner."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from msgspec.structs import astuple

from jengine.errors import EngineDead
from jengine.executor.calls import CALLS, decoded_arguments, encoded_answer, encoded_problem
from jengine.executor.own_functions import OwnFunctions, watched
from jengine.executor.protocol import PendingOutput, WorkerHealth
from jengine.executor.read_step import ReadStep
from jengine.executor.worker_calls import RUN
from jengine.outputs import StepOutput
from jengine.plan import Plan
from jengine.runner.runner import PlanRunner
from sharding.jax_settings import engine_context


class LocalExecutor:
    """Owns the runner, and with it the device memory, until shutdown.

    Whatever its callers' threads have set in JAX, the runner works in the engine's context.
    """

    def __init__(self, runner: PlanRunner) -> None:
        self.step = -1  # the last one begun
        self._runner: PlanRunner | None = runner
        self._functions = OwnFunctions()

    @property
    def runner(self) -> PlanRunner:
        """The runner. Raises after shutdown."""
        if self._runner is None:
            raise EngineDead("this engine was shut down. Create a new one.")
        return self._runner

    @engine_context()
    def submit(self, plan: Plan) -> PendingOutput:
        self.step = plan.step
        uses = self._functions.uses(plan, self.runner.loaded.functions_of)
        step = ReadStep(self.runner.submit(plan), read)
        return watched(uses, step) if uses else step

    @engine_context()
    def update_weights(self, values: Mapping[str, Any]) -> None:
        self.runner.update_parameters(values)

    @engine_context()
    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Run the call in this process. An error is encoded in the answer, as workers do."""
        run, loaded = CALLS[method].run, self.runner.loaded
        try:
            given = decoded_arguments(method, arguments)
            value = run(loaded, given) if run else RUN[method](loaded, *astuple(given))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            return [encoded_problem(error)]
        return [encoded_answer(value)]

    def health(self) -> list[WorkerHealth]:
        return [WorkerHealth(0, this_process(), self.step, 0.0)]

    @engine_context()
    def shutdown(self) -> None:
        """Drop the runner. Its arrays are freed after the last step in flight."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.loaded.close()


@engine_context()
def read(step: PendingOutput) -> StepOutput:
    return step.result()


def this_process() -> str:
    return f"{platform.node()} process {os.getpid()}"
