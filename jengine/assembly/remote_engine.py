"""An engine whose devices are in other processes: requests are scheduled here, steps run there.

In: EngineArgs and an executor's class. Out: the executor, and what stands for the parts that are
not here. Starts no device in this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from flax import nnx

from jengine.assembly.args import EngineArgs
from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.engine.session import Session
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.executor.protocol import Capacity, EngineJob, Executor, StartedExecutor
from jengine.runner.ledger import ProgramCounts
from jengine.text.tokenizer import Tokenizer
from jengine.weights.stages import StagePlaces
from sharding.placement import Placement

WORKER_PROGRAM = "jengine.assembly.worker:run"
# Settings of requests, or of this process alone: workers have no use for them.
NOT_FOR_WORKERS = (
    "model", "params", "tokenizer", "skip_tokenizer_init", "chat_template", "mesh", "multihost",
    "executor", "executor_options", "generation_config", "disable_log_stats", "show_progress",
    "trust_remote_code", "dtype",
)  # fmt: skip


def job_of(args: EngineArgs, folder: str, dtype: str) -> EngineJob:
    """What workers are told: plain data only."""
    if (args.data_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"executor={args.executor!r} with data_parallel_size={args.data_parallel_size}: data "
            "parallelism over workers is not built yet; make an engine for each replica."
        )
    if (args.pipeline_parallel_size or 1) > 1:
        raise UnsupportedFeature(
            f"executor={args.executor!r} with pipeline_parallel_size={args.pipeline_parallel_size}:"
            " stages over workers are not built yet; use tensor_parallel_size, or start the same "
            "program in every process."
        )
    for name in ("params", "mesh"):
        if getattr(args, name) is not None:
            raise ConfigError(
                f"executor={args.executor!r} with {name}=...: arrays and devices of this process "
                f"cannot be used in workers; leave {name} out and give a model folder."
            )
    settings = {name: value for name, value in vars(args).items() if name not in NOT_FOR_WORKERS}
    settings.update(model=folder, dtype=dtype, skip_tokenizer_init=True)
    try:
        plain = msgspec.to_builtins(settings)
    except TypeError as error:
        raise ConfigError(
            f"executor={args.executor!r}: a setting cannot travel: {error}"
        ) from error
    return EngineJob(
        settings=plain,
        options=dict(args.executor_options or {}),
        multihost=dict(args.multihost or {}),
        program=WORKER_PROGRAM,
    )


def started(kind: type[StartedExecutor], job: EngineJob) -> StartedExecutor:
    """The executor, ready to run steps; what it says of itself is checked."""
    executor = kind.start(job)
    if not isinstance(executor.capacity, Capacity):
        executor.shutdown()
        raise ConfigError(
            f"{kind.__name__}.start(): expected an executor with a Capacity as .capacity, found "
            f"{executor.capacity!r}."
        )
    return executor


def refuse() -> NoReturn:
    """Say that this cannot be had here, and what can."""
    raise UnsupportedFeature(
        "this needs parameters, programs or devices of the engine, which are in its workers and "
        "not in this process. Use an engine of this process for it; llm.call_workers(...) and "
        "llm.health() tell about workers."
    )


class RemoteModel:
    """What an engine can tell about a model that only its workers have loaded."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def program_counts(self) -> ProgramCounts:
        """Of the first worker; all compile the same."""
        answers = self._executor.call_workers("programs", encoded_arguments("programs", {}))
        return decoded_answers("programs", answers)[0]

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Workers compile everything before they run a step."""
        return True

    def __getattr__(self, name: str) -> NoReturn:
        refuse()


@dataclass(frozen=True)
class RemoteEngine:
    """What `LLM` and `AsyncLLM` hold of an engine whose devices are elsewhere."""

    session: Session
    loaded: RemoteModel
    args: EngineArgs
    folder: Path
    model: ModelConfig
    schedule: ScheduleConfig
    cache: CacheConfig
    tokenizer: Tokenizer | None
    default_params: Mapping[str, Any]
    processes: int = 1  # that make the same calls: the workers make none

    def check_leaves(self) -> None:
        """Nobody but the workers can reach the parameters, so nobody has donated them."""

    @property
    def declared(self) -> nnx.Module:
        """Not here."""
        refuse()

    @property
    def placement(self) -> Placement:
        """Not here."""
        refuse()

    @property
    def places(self) -> StagePlaces:
        """Not here."""
        refuse()
