"""Protocol of executors, which run plans in order, asynchronously.

`local` runs them in this process, `multihost` in every process of one program, `ray` in processes
that it starts; `executor="package.module:Class"` names another one. Every wait for another process
has a deadline, after which EngineDead is raised. Must not know requests.

With `executor="ray"`, or a class of your own, the scheduler stays in the calling process, which
uses no devices. Workers answer a fixed list of RPCs (`calls`) with bytes, never objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from jengine.config import CacheConfig, ScheduleConfig
from jengine.outputs import StepOutput
from jengine.plan import Plan


class WorkerHealth(msgspec.Struct, frozen=True):
    """Health of a worker process."""

    rank: int
    where: str  # host and process, for messages
    step: int  # the last step it began, as far as known; -1: none
    silent: float  # seconds since its last heartbeat


class Capacity(msgspec.Struct, frozen=True):
    """Sizes known after loading and compiling. The cache has the same size in all workers: that of
    the worker with the least memory."""

    schedule: ScheduleConfig
    cache: CacheConfig
    depth: int  # plans that may be in flight while one is read
    platform: str  # cpu, gpu


@dataclass(frozen=True)
class EngineJob:
    """Everything an executor needs to start workers."""

    settings: Mapping[str, Any]  # keyword arguments of jengine.LLM, all of them plain data
    options: Mapping[str, Any]  # executor_options=, which only this executor understands
    multihost: Mapping[str, Any]  # multihost=, for several processes of one program
    # "package.module:function" that a worker process calls with a Job as bytes.
    program: str


class PendingOutput(Protocol):
    """Future of a queued step's output."""

    @property
    def ready(self) -> bool: ...

    @property
    def has_left(self) -> bool:
        """Whether all programs that produce its output are queued. False in a pipeline while later
        plans still have to move it through the stages."""
        ...

    def result(self) -> StepOutput:
        """Wait for the step and read what it sampled.

        Raises EngineDead when the workers are lost or do not answer in time, and UnexpectedCompile
        (strict mode) before any of the step has run. In a pipeline, StepDropped follows an
        exception of `submit` or of an earlier step's `result`. Results may be read while later
        steps are queued.
        """
        ...


class Executor(Protocol):
    """Runs plans in order; a plan may depend on all plans submitted before it."""

    def submit(self, plan: Plan) -> PendingOutput:
        """Queue the plan's step and return without waiting. A plan without rows also runs a
        step."""
        ...

    def update_weights(self, values: Any) -> None:
        """Use these placed arrays, keyed by parameter path, for every later plan."""
        ...

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        """Run one of `executor.calls.CALLS` in every worker; returns encoded results by rank.

        Runs between steps: after those submitted before it.
        """
        ...

    def health(self) -> list[WorkerHealth]:
        """Health of every worker; also available while a step runs."""
        ...

    def shutdown(self) -> None:
        """Free memory and stop started processes. Idempotent; nothing may be submitted
        afterwards."""
        ...


class StartedExecutor(Executor, Protocol):
    """An executor that starts worker processes. `executor=` names its class."""

    @property
    def capacity(self) -> Capacity: ...

    @classmethod
    def start(cls, job: EngineJob) -> StartedExecutor:
        """Start workers, load the model, size the cache, compile. Returns when steps can run.

        Raises a ConfigError within its deadline if that fails, and leaves nothing running.
        """
        ...
