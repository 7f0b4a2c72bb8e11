"""Runs every compiled program on empty steps before serving, to capture its CUDA graphs.

XLA launches the kernels of a program's first run one by one and captures its CUDA graphs in the
second; loading a program drops the graphs of all others. So each program runs twice once all are
compiled, the largest first, as its graphs take the most memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jengine.runner.runner import PlanRunner, Runner
from jengine.runner.runner_config import RunnerConfig

# Runs until a program's graphs are recorded.
RUNS = 2


def records_graphs(platform: str) -> bool:
    """Whether rehearsing helps: on GPUs, where a program's second run records CUDA graphs."""
    return platform != "cpu"


def rehearse(runners: Sequence[PlanRunner], config: RunnerConfig) -> None:
    """Run every compiled program twice, and wait. Writes nothing that requests could read.

    Not implemented for pipelines and joint replicas, which queue several plans at once.
    """
    largest_first = sorted(config.ladders.buckets(), key=lambda one: -one.num_tokens)
    for runner in runners:
        if not isinstance(runner, Runner):
            continue
        for bucket in largest_first:
            for tier in config.tiers:
                for _ in range(RUNS):
                    runner.run_empty(bucket, tier, RUNS)
        jax.block_until_ready(runner.loaded.state)
