"""XLA compiler options of a step: the platform's, and the user's choices.

In: the device, the tokens of a program, choices. Out: a dict for `Lowered.compile`.

A CUDA graph ends at each collective, unless `compilation_config={"capture_collectives": True}`; XLA
records a graph with collectives again at every step. `python -m jengine.bench.gpu` compares both on
a machine with several GPUs, and shortest graphs of two and of five launches: XLA's default is five,
but a sharded layer has only four between two all-reduces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pallas_kernels.xla_matmul import CUBLASLT, matmul_library

GPU_OPTIONS: dict[str, Any] = {
    # In percent, out of reach: XLA counts every kernel's write into the cache as another cache
    # and would rematerialise small values in each layer to save memory that is not used. The
    # engine sizes memory by what XLA reports after compiling. Ten times what is free is not out of
    # reach: an 8B model beside a cache of 110 GB counts as 358 GB.
    "xla_gpu_memory_limit_slop_factor": 100_000,
    # A kernel that reads a slice of the packed input would be left out of the CUDA graph.
    "xla_gpu_enable_dynamic_slice_fusion": False,
    # Otherwise XLA launches kernels one by one while a profiler records, and traces show programs
    # that are never served.
    "xla_enable_command_buffers_during_profiling": True,
}
# Set to False, it leaves matmuls to cuBLASLt.
WITHOUT_TRITON = "xla_gpu_enable_triton_gemm"
# XLA's default contents of CUDA graphs, and collectives. Without these a graph ends at each
# collective; with them XLA records the graph again at every step, which has been slower
# (openxla/xla#35360), and steps have hung.
GRAPHS_WITH_COLLECTIVES = "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,COLLECTIVES"
# The fewest launches of a graph. Between two all-reduces of a sharded layer there are four, and by
# default XLA launches fewer than five one by one.
FEWEST_IN_GRAPH = {"xla_gpu_graph_min_graph_size": 2}
# Beside steps measurements are noise, and the KV cache leaves no memory for their operands. Options
# are part of a program's key in the compile cache, so none of these choices stays.
UNMEASURED = {"xla_gpu_autotune_level": 0}
# What may be under way beside kernels: by default two copies of the parameters of a layer that
# comes from the host's memory, and kernels would wait for the others.
MOST_UNDER_WAY = "xla_gpu_experimental_parallel_async_compute_limit"


@dataclass(frozen=True)
class CompilerChoices:
    """The part of the compilation config that concerns XLA."""

    capture_collectives: bool = False  # in CUDA graphs
    matmuls: str = "auto"  # or the library of all programs, see `pallas_kernels.xla_matmul`
    short_graphs: bool = True  # whether CUDA graphs may hold few launches
    arriving: int = 0  # the most parameters of a layer that comes from the host's memory

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
