"""Wraps a runner and queues block copies of a plan's forks (beam search) before the rest of the
plan.

In: plans. Out: their steps. In the devices' queue the copies follow earlier steps, whose blocks
they read, and precede the plan's loads and step, which may overwrite these. Their programs are
compiled on first use, as few engines fork.
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
        self._runner.drain()

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        self._runner.update_parameters(values)

    def _copy(self, forks: Forks) -> None:
        arrays = group_arrays(self.loaded, forks.group)
        copied = self._programs[forks.group].copy(arrays, forks.sources, forks.targets)
        use_arrays(self.loaded, forks.group, copied)
