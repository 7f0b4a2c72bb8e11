"""Compiles the step for one bucket and features, ahead of time, from shapes alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from jengine.runner.memory.freed_memory import give_back_freed_memory
from jengine.runner.programs.ledger import LedgerEntry
from jengine.runner.step.leaves import Leaves
from jengine.runner.step.multi_step import multi_step
from jengine.runner.step.pipeline_step import PACKED_AXES, pipeline_step
from jengine.runner.step.program import Program, Stages
from jengine.runner.step.state import StepState
from jengine.runner.step.step import step
from jengine.runner.step.step_input import packed_size
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.runner.variants.features import Features
from sharding.placement import Placement

Compiled = Any  # jax.stages.Compiled
COMPILER_OPTIONS: dict[str, dict[str, Any]] = {
    "gpu": {
        # XLA takes every kernel's write into the cache for a second cache, and to save memory that
        # is not used it would compute small things again in each layer. The engine sizes memory by
        # what XLA says after compiling, so this limit is put out of reach; in percent.
        "xla_gpu_memory_limit_slop_factor": 1000,
        # A kernel that reads a slice of the packed input would leave the CUDA graph for it.
        "xla_gpu_enable_dynamic_slice_fusion": False,
    }
}

# What XLA puts into CUDA graphs by itself, and exchanges between devices, each of which would
# otherwise end a graph.
GRAPHS_OF_SEVERAL_DEVICES = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,COLLECTIVES"


def compiler_options(platform: str, devices: int) -> dict[str, Any] | None:
    """What XLA is told beside the program; None for a platform where nothing needs saying."""
    options = COMPILER_OPTIONS.get(platform)
    if options is None or devices == 1:
        return options
    return {**options, "xla_gpu_enable_command_buffer": GRAPHS_OF_SEVERAL_DEVICES}


@dataclass(frozen=True)
class StepCompiler:
    """Lowers and compiles one step. Sees shapes only, so it runs before any memory is taken."""

    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]
    leaves: Any  # abstract leaves, with shardings
    state: StepState  # abstract state, with shardings
    placement: Placement
    stages: Stages | None = None  # None: there is one

    def compile(self, bucket: Bucket, features: Features) -> tuple[Compiled, LedgerEntry]:
        """The executable and what it cost."""
        began = time.perf_counter()
        devices = self.placement.mesh.devices
        options = compiler_options(devices.flat[0].platform, devices.size)
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
        """The program as XLA gets it: the same text for every replica, as it names no devices."""
        program = Program(bucket, features, self.shapes, self.rebuild, self.placement, self.stages)
        everywhere = self.placement.everywhere
        jitted = jax.jit(
            partial(self._body(bucket), program=program),
            donate_argnums=1,
            # The state comes back as it went in, so that the next step finds it in place.
            out_shardings=(jax.tree.map(lambda x: x.sharding, self.state), everywhere),
        )
        return jitted.lower(self.leaves, self.state, self._packed(bucket))

    def _body(self, bucket: Bucket) -> Callable[..., Any]:
        if self.stages is not None:
            return pipeline_step
        return multi_step if bucket.is_multi_step else step

    def _packed(self, bucket: Bucket) -> jax.ShapeDtypeStruct:
        """The packed input, of which every stage has a row of its own, with its number."""
        size = packed_size(bucket, self.shapes)
        shape = (size,) if self.stages is None else (self.placement.num_stages, size + 1)
        axes = PACKED_AXES[-len(shape) :]
        where = self.placement.sharding(axes, shape)
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=where)
