"""An engine whose devices are in other processes: requests are scheduled here, steps run there.

In: groups of settings, an executor's class. Out: the executor, with workers ready to run steps.
Starts no device in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.plain_settings import refuse_arrays
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.protocol import Capacity, EngineJob, StartedExecutor

WORKER_PROGRAM = "jengine.assembly.worker:run"


def job_of(asked: Groups, settings: Callable[[str], dict[str, Any]]) -> EngineJob:
    """The job for the workers. `settings` makes plain data of the engine's settings; it takes what
    errors call the executor."""
    parallel = asked.parallel
    where = f"executor={parallel.executor!r}"
    if (parallel.data_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"{where} with data_parallel_size={parallel.data_parallel_size}: "
            "replicas are in processes of their own: data_parallel_backend='process', or 'ray'."
        )
    if (parallel.pipeline_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"{where} with pipeline_parallel_size={parallel.pipeline_parallel_size}:"
            " stages over workers are not built yet; use tensor_parallel_size, or start the same "
            "program in every process."
        )
    refuse_arrays(where, asked.model.params, parallel.mesh, asked.steps.logits_processors)
    return EngineJob(
        settings=settings(where),
        options=dict(parallel.executor_options or {}),
        multihost=dict(parallel.multihost or {}),
        program=WORKER_PROGRAM,
    )


def started(kind: type[StartedExecutor], job: EngineJob) -> StartedExecutor:
    """The executor, ready to run steps; the capacity that it reports is checked."""
    executor = kind.start(job)
    if not isinstance(executor.capacity, Capacity):
        executor.shutdown()
        raise ConfigError(
            f"{kind.__name__}.start(): expected an executor with a Capacity as .capacity, found "
            f"{executor.capacity!r}."
        )
    return executor
