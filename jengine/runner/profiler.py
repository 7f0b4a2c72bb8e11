"""JAX's profiler (one per process), with step annotations in its traces.

While it records, each call of a compiled step is annotated with the step's number and its bucket.
Otherwise a step only checks a flag.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import jax

from jengine.runner.variants.buckets import Bucket

NOTHING: AbstractContextManager[None] = nullcontext()
# Names of the annotations.
STEP, PACK = "engine_step", "pack"


class Profiler:
    """Starts and stops profiling of this process and its devices."""

    def __init__(self) -> None:
        self.active = False

    def start(self, folder: str) -> None:
        jax.profiler.start_trace(folder)
        self.active = True

    def stop(self) -> None:
        """Stop and write what was recorded."""
        self.active = False
        jax.profiler.stop_trace()

    @staticmethod
    def memory() -> bytes:
        """Device memory profile in pprof format: live buffers by allocation site."""
        return jax.profiler.device_memory_profile()

    def step(self, number: int, bucket: Bucket) -> AbstractContextManager[None]:
        """Trace annotation around the call of a compiled step."""
        if not self.active:
            return NOTHING
        return jax.profiler.StepTraceAnnotation(STEP, step_num=number, bucket=str(bucket))

    def pack(self) -> AbstractContextManager[None]:
        """Trace annotation around the packing of a plan."""
        return jax.profiler.TraceAnnotation(PACK) if self.active else NOTHING


PROFILER = Profiler()
