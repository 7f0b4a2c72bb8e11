"""Wraps a runner and queues block copies of a plan's forks before the rest of the plan.

In: plans. Out: their steps. The copies follow the steps before them in the devices' queue, so they
read what those have written, and run before the plan's own loads and step, which may write to what
they read. Their programs are compiled when the first fork comes: few engines ever have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax

from jengine.plan import Forks, Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.runner import PlanRunner, StepHandle
from jengine.runner.transfers.device_blocks import (
    BlockPrograms,
    group_arrays,
    programs_of,
    use_arrays,
)


class ForkRunner:
    """Runs plans with forks: copies of blocks from one request to another."""

    def __init__(self, runner: PlanRunner) -> None:
        self.loaded: LoadedModel = runner.loaded
        self._runner = runner
        self._programs: Sequence[BlockPrograms] = programs_of(runner.loaded)

    def submit(self, plan: Plan) -> StepHandle:
        for forks in plan.forks:
            self._copy(forks)
        return self._runner.submit(plan)

    def drain(self) -> None:
        """Queue whatever submitted plans still need to complete."""
        self._runner.drain()

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        self._runner.update_parameters(values)

    def _copy(self, forks: Forks) -> None:
        arrays = group_arrays(self.loaded, forks.group)
        copied = self._programs[forks.group].copy(arrays, forks.sources, forks.targets)
        use_arrays(self.loaded, forks.group, copied)
