"""Runs every compiled program on empty steps before serving, to capture its CUDA graphs.

XLA launches the kernels of a program's first run one by one and captures its CUDA graphs in the
second; loading a program drops the graphs of all others. So each program runs twice after all are
compiled, the largest first, whose graphs take the most memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import jax

from jengine.runner.runner import EmptyRunner
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.variants.buckets import StepShapes
from sharding.placement import Placement

# Runs after which a program's graphs are captured.
RUNS = 2


def records_graphs(platform: str) -> bool:
    """Whether rehearsing helps: on GPUs, where a program's second run records CUDA graphs."""
    return platform != "cpu"


def loads_kernels(whole: Placement, shapes: StepShapes) -> bool:
    """Whether Triton kernels' modules must be loaded before the first step: where several devices
    run one program, loading during a collective can deadlock (`pallas_kernels.launch.loading`)."""
    together = whole.joint or any(part.mesh.size > 1 for part in whole.replicas)
    platform = whole.mesh.local_devices[0].platform
    return together and platform != "cpu" and shapes.attention == "triton"


def load_kernels(kernels: set[Any], whole: Placement) -> None:
    """Run each kernel once on this process's devices, in a program without collectives. Programs
    compiled later load their kernels at the first run."""
    importlib.import_module("pallas_kernels.launch").load_kernels(kernels, whole.mesh.local_devices)


def rehearse(runners: Sequence[EmptyRunner], config: RunnerConfig) -> None:
    """Run every compiled program twice, and wait. Writes nothing that requests could read."""
    largest_first = sorted(config.ladders.buckets(), key=lambda one: -one.num_tokens)
    for runner in runners:
        for bucket in largest_first:
            for tier in config.tiers:
                for _ in range(RUNS):
                    runner.run_empty(bucket, tier, RUNS)
        jax.block_until_ready(runner.loaded.state)
