"""XLA compiler options of a step: the platform's, and the user's choices.

In: the device, the tokens of a program, choices. Out: a dict for `Lowered.compile`.

A CUDA graph ends at each collective, unless `compilation_config={"capture_collectives": True}`; XLA
captures a graph with collectives again at every step. `python -m jengine.bench.gpu` compares both
on several GPUs, and minimum graph sizes of two and five launches: XLA's default is five, but a
sharded layer has only four between two all-reduces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pallas_kernels.xla_matmul import CUBLASLT, matmul_library

GPU_OPTIONS: dict[str, Any] = {
    # Percent, effectively no limit: XLA counts every kernel's in-place write to the cache as
    # another cache, and would rematerialise values in each layer to save memory that is not used.
    # The engine sizes memory by what XLA reports after compiling. 1,000 % is too little: an 8B
    # model with a cache of 110 GB counts as 358 GB.
    "xla_gpu_memory_limit_slop_factor": 100_000,
    # A kernel that reads a slice of the packed input would be left out of the CUDA graph.
    "xla_gpu_enable_dynamic_slice_fusion": False,
    # Otherwise XLA launches kernels one by one while a profiler records, and traces show programs
    # that are never served.
    "xla_enable_command_buffers_during_profiling": True,
}
# False leaves matmuls to cuBLASLt.
WITHOUT_TRITON = "xla_gpu_enable_triton_gemm"
# XLA's default contents of CUDA graphs, plus collectives, with which XLA captures the graph again
# at every step; that has been slower (openxla/xla#35360), and steps have hung.
GRAPHS_WITH_COLLECTIVES = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,COLLECTIVES"
# Minimum launches of a graph. XLA's default is 5; between two all-reduces of a sharded layer there
# are four.
FEWEST_IN_GRAPH = {"xla_gpu_graph_min_graph_size": 2}
# While steps run, autotuning measures noise, and the KV cache leaves no memory for its operands.
# Options are part of a program's key in the compile cache, so these choices are not reused later.
UNMEASURED = {"xla_gpu_autotune_level": 0}
# Concurrent async copies: XLA's default is two, so kernels would wait for the other parameters of
# an offloaded layer.
MOST_UNDER_WAY = "xla_gpu_experimental_parallel_async_compute_limit"


@dataclass(frozen=True)
class CompilerChoices:
    """The compilation config's choices for XLA."""

    capture_collectives: bool = False  # in CUDA graphs
    matmuls: str = "auto"  # or the library of all programs, see `pallas_kernels.xla_matmul`
    short_graphs: bool = True  # allow CUDA graphs of few launches
    arriving: int = 0  # most parameter arrays of an offloaded layer

    def options(self, device: Any, tokens: int, *, measures: bool = True) -> dict[str, Any] | None:
        """XLA options for a program over this many tokens; None: defaults. `measures`: allow
        autotuning on the device."""
        if device.platform != "gpu":
            return None
        options = dict(GPU_OPTIONS)
        if self.short_graphs:
            options |= FEWEST_IN_GRAPH
        if not measures:
            options |= UNMEASURED
        if self.arriving:
            options[MOST_UNDER_WAY] = self.arriving
        if self.capture_collectives:
            options["xla_gpu_enable_command_buffer"] = GRAPHS_WITH_COLLECTIVES
        library = self.matmuls
        if library == "auto":
            library = matmul_library(capability_of(device), tokens)
        if library == CUBLASLT:
            options[WITHOUT_TRITON] = False
        return options


def capability_of(device: Any) -> int:
    """CUDA compute capability as 90 for 9.0; 0 for other devices."""
    major, _, minor = str(getattr(device, "compute_capability", "0.0")).partition(".")
    return int(major) * 10 + int(minor or 0)
