"""The runner: packs a plan, finds its compiled step and queues it. Does not wait for results.

`pipeline_runner.PipelineRunner` fulfils the same contract for models in pipeline stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import jax

from jengine.outputs import StepOutput
from jengine.plan import Plan
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.plans.needed_features import needed
from jengine.runner.plans.packing import PackedStep, bucket_for, pack
from jengine.runner.plans.results import PendingStep
from jengine.runner.plans.rows import Rows
from jengine.runner.profiler import PROFILER
from jengine.runner.programs.block_tables import block_entries
from jengine.runner.programs.compiler import Compiled
from jengine.runner.variants.features import Features


class StepHandle(Protocol):
    """A submitted plan. `executor.protocol.PendingOutput` says what its members mean."""

    @property
    def ready(self) -> bool: ...

    @property
    def has_left(self) -> bool: ...

    def result(self) -> StepOutput: ...


class PlanRunner(Protocol):
    """Runs plans in the order of submission: each relies on the plans before it."""

    loaded: LoadedModel

    def submit(self, plan: Plan) -> StepHandle:
        """Queue the step of this plan. Waits for no step."""
        ...

    def drain(self) -> None:
        """Queue what submitted plans still need, so that all of them have left. Waits for none."""
        ...

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Use these parameters for later plans; shapes and dtypes were checked before."""
        ...


class Runner:
    """Runs each plan in one step, on one replica's devices."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self._rows = Rows(loaded.shapes)

    def submit(self, plan: Plan) -> PendingStep:
        """Queue the step of this plan. Waits for no step."""
        loaded, rows, programs = self.loaded, self._rows, self.loaded.programs
        rows.apply(plan)
        features = self._needed(plan)
        smallest = bucket_for(plan, rows, loaded.ladders)
        bucket = programs.bucket_for(smallest, features)
        program, entry = programs.find(bucket, features)
        new_blocks = block_entries(plan.new_blocks)
        with PROFILER.pack():
            packed = pack(plan, rows, bucket, loaded.shapes, new_blocks)
        loaded.add_blocks(new_blocks[loaded.shapes.num_new_blocks(bucket) :])
        loaded.admit(plan.new_rows)
        loaded.mask(plan.masks)
        with PROFILER.step(plan.step, bucket):
            output = self._run(plan, packed, program, adapters=entry.features.adapters)
        entry.count(plan.num_tokens, plan.repeats, plan.num_prompt_tokens)
        return PendingStep(plan, packed, output)

    def drain(self) -> None:
        """Nothing: every plan was queued whole."""

    def _needed(self, plan: Plan) -> Features:
        """The features of the plan's rows, which are up to date."""
        loaded = self.loaded
        return needed(plan, self._rows, loaded.vocab_size, loaded.taps, loaded.processors)

    def _run(
        self, plan: Plan, packed: PackedStep, program: Compiled, *, adapters: bool
    ) -> StepOutput:
        """Queue the program of a packed plan; `adapters`: whether it takes any."""
        return self.loaded.run(program, packed.buffer, adapters=adapters)

    def update_parameters(self, values: Mapping[str, jax.Array]) -> None:
        """Use these parameters for later plans; shapes and dtypes were checked before."""
        self.loaded.update_parameters(values)
