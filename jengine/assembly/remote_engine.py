"""An engine whose devices are in other processes: requests are scheduled here, steps run there.

In: EngineArgs and an executor's class. Out: the executor, with its workers ready to run steps.
Starts no device in this process.
"""

from __future__ import annotations

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.plain_settings import plain_settings, refuse_arrays
from jengine.assembly.settings.setting import WORKER
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.protocol import Capacity, EngineJob, StartedExecutor

WORKER_PROGRAM = "jengine.assembly.worker:run"


def job_of(args: EngineArgs, folder: str, dtype: str) -> EngineJob:
    """The job for the workers, as plain data."""
    if (args.data_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"executor={args.executor!r} with data_parallel_size={args.data_parallel_size}: "
            "replicas are in processes of their own: data_parallel_backend='process', or 'ray'."
        )
    if (args.pipeline_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"executor={args.executor!r} with pipeline_parallel_size={args.pipeline_parallel_size}:"
            " stages over workers are not built yet; use tensor_parallel_size, or start the same "
            "program in every process."
        )
    where = f"executor={args.executor!r}"
    refuse_arrays(args, where)
    plain = plain_settings(args, where, WORKER, model=folder, dtype=dtype, skip_tokenizer_init=True)
    return EngineJob(
        settings=plain,
        options=dict(args.executor_options or {}),
        multihost=dict(args.multihost or {}),
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
