"""Compiles the step for one bucket and features, ahead of time, from shapes alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from jengine.runner.memory.freed_memory import give_back_freed_memory
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.programs.ledger import LedgerEntry
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.multi_step import multi_step
from jengine.runner.step.pipeline_step import PACKED_AXES, pipeline_step
from jengine.runner.step.program import GuesserProgram, Program, Stages
from jengine.runner.step.state import StepState
from jengine.runner.step.step import step
from jengine.runner.step.step_input import packed_size
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.runner.variants.features import Features
from sharding.placement import Placement

Compiled = Any  # jax.stages.Compiled


@dataclass(frozen=True)
class StepCompiler:
    """Lowers and compiles one step from shapes alone, before any memory is allocated."""

    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]
    leaves: Any  # abstract leaves, with shardings
    state: StepState  # abstract state, with shardings
    placement: Placement
    stages: Stages | None = None  # None: no pipeline
    choices: CompilerChoices = field(default_factory=CompilerChoices)
    guesser: GuesserProgram | None = None  # None: steps make no guesses

    def compile(self, bucket: Bucket, features: Features) -> tuple[Compiled, LedgerEntry]:
        """The executable and what it cost."""
        began = time.perf_counter()
        device = self.placement.mesh.devices.flat[0]
        options = self.choices.options(device, bucket.num_tokens)
        compiled = self.lower(bucket, features).compile(compiler_options=options)
        give_back_freed_memory()
        memory = compiled.memory_analysis()
        return compiled, LedgerEntry(
            bucket,
            features,
            seconds=time.perf_counter() - began,
            temp_bytes=memory.temp_size_in_bytes if memory else 0,
            code_bytes=memory.generated_code_size_in_bytes if memory else 0,
        )

    def lower(self, bucket: Bucket, features: Features) -> jax.stages.Lowered:
        """The lowered program. Its text names no devices, so it is equal for all replicas."""
        program = Program(
            bucket, features, self.shapes, self.rebuild, self.placement, self.stages, self.guesser
        )
        everywhere = self.placement.everywhere
        jitted = jax.jit(
            partial(self._body(bucket), program=program),
            donate_argnums=1,
            # The state keeps its shardings, so that the next step takes it as it is.
            out_shardings=(jax.tree.map(lambda x: x.sharding, self.state), everywhere),
        )
        return jitted.lower(self.leaves, self.state, self._packed(bucket))

    def _body(self, bucket: Bucket) -> Callable[..., Any]:
        if self.stages is not None:
            return pipeline_step
        return multi_step if bucket.is_multi_step else step

    def _packed(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """The packed input; in a pipeline, one row per stage, ending with the stage's index."""
        size = packed_size(bucket, self.shapes)
        shape = (size,) if self.stages is None else (self.placement.num_stages, size + 1)
        axes = PACKED_AXES[-len(shape) :]
        where = self.placement.sharding(axes, shape)
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=where)
