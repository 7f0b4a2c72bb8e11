"""Checks of settings against each other and against the processes of the mesh.

In: settings, and the processes whose devices are used. Out: a ConfigError, or nothing.
"""

from __future__ import annotations

from jengine.assembly.settings.parallel_args import ParallelSettings
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.choice import OWN_PROCESSES
from jengine.runner.runner_config import RunnerConfig


def checked_options(asked: ParallelSettings) -> None:
    """Raise ConfigError for executor_options without an executor that starts workers, and for
    replicas that need processes of their own."""
    if asked.replicas_in_processes:
        raise ConfigError(
            f"data_parallel_backend={asked.data_parallel_backend!r}: an engine of this process "
            "alone cannot have replicas in others. Use jengine.assembly.processes.engine_process."
            "start_engine_process, as LLM and AsyncLLM do."
        )
    if asked.executor in OWN_PROCESSES and asked.executor_options is not None:
        raise ConfigError(
            f"executor_options with executor={asked.executor!r}: expected an executor that starts "
            "workers, such as 'ray'. Leave executor_options out."
        )


def check_processes(executor: str, processes: list[int]) -> None:
    """Raise ConfigError if the executor does not fit the processes whose devices are used."""
    if executor == "local" and len(processes) > 1:
        raise ConfigError(
            f"executor='local', but the devices are of processes {processes}: give mesh= with "
            "devices of this process alone, or leave executor out."
        )
    if executor == "multihost" and len(processes) == 1:
        raise ConfigError(
            "executor='multihost', but all devices are of this process. Call "
            "jax.distributed.initialize() in every process first, or leave executor out."
        )


def refuse_halves(steps: RunnerConfig, processes: list[int]) -> None:
    """Raise UnsupportedFeature for host-side logits processors in multi-process engines."""
    if steps.host_processors and len(processes) > 1:
        raise UnsupportedFeature(
            f"logits_processors has the class {steps.host_processors[0].__name__}, which runs on "
            f"the host, but the devices are of processes {processes}. Write it as a JAX function "
            "f(logits) or f(ids, logits)."
        )


def starts_early(
    steps: RunnerConfig, processes: list[int], *, chosen: bool, usual: bool = True
) -> bool:
    """Whether requests are admitted before every program is compiled. Not in multi-process engines,
    whose processes must run the same programs: an error if `chosen` by the user. `usual`: the
    default on this kind of device."""
    if not (chosen or usual):
        return False
    if not steps.early_start or len(processes) == 1:
        return steps.early_start
    if chosen:
        raise ConfigError(
            f"compilation_config['wait_for']='largest', but the devices are of processes "
            f"{processes}, which must all run the same programs. Leave wait_for out."
        )
    return False
