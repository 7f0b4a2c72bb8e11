"""A built engine: its session and client, and its parts on local devices.

Must not import jax, so that front processes do without it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.args import EngineArgs
from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.engine.client import EngineClient
from jengine.engine.in_process import InProcessClient
from jengine.engine.questions import CallWorkers
from jengine.engine.session import Session
from jengine.errors import UnsupportedFeature
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.grammar.compiler import GrammarCompiler
from jengine.runner.report_types import ProgramCounts
from jengine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from flax import nnx

    from jengine.engine.protocol import Core
    from jengine.runner.loaded_model import LoadedModel
    from jengine.runner.runner import PlanRunner
    from jengine.runner.step.leaves import LeafOrder
    from jengine.weights.stage_places import StagePlaces
    from sharding.placement import Placement


# Seconds between polls of another process's pending programs.
GLANCE = 0.2


@dataclass(frozen=True)
class DeviceSide:
    """The parts of an engine in the process that owns the devices."""

    core: Core
    runners: tuple[PlanRunner, ...]  # one per data-parallel replica
    schedule: ScheduleConfig
    cache: CacheConfig
    depth: int
    declared: nnx.Module  # abstract model, which new parameters must fit
    order: LeafOrder  # of all replicas' parameters
    grammars: GrammarCompiler


@dataclass(frozen=True)
class Engine:
    """A built engine: its session and client, and the settings that `LLM` and `AsyncLLM` read."""

    session: Session
    client: EngineClient
    args: EngineArgs
    folder: Path | None  # model folder; None: live model
    model: ModelConfig
    schedule: ScheduleConfig
    cache: CacheConfig
    tokenizer: Tokenizer | None
    default_params: Mapping[str, Any]
    devices: DeviceSide | None  # None: steps run in other processes
    platform: str = "cpu"  # of the devices

    @property
    def here(self) -> DeviceSide:
        """The device side. Raises UnsupportedFeature if steps run in other processes."""
        if self.devices is None:
            raise UnsupportedFeature(
                "this needs parameters, programs or devices of the engine, which are in other "
                "processes. Use an engine of this process for it (without executor= or "
                "multiprocess=True); call_workers(...) and health() tell about other processes."
            )
        return self.devices

    @property
    def in_process(self) -> InProcessClient:
        """The in-process client. Raises UnsupportedFeature otherwise."""
        if not isinstance(self.client, InProcessClient):
            raise UnsupportedFeature(
                "this needs arrays or the scheduler of the engine, which are in its core process "
                "and not in this one. Create the engine without multiprocess=True for it."
            )
        return self.client

    @property
    def runners(self) -> tuple[PlanRunner, ...]:
        return self.here.runners

    @property
    def loaded(self) -> LoadedModel:
        """The model on the first replica's devices. Programs, parameters and taps are equal on
        all."""
        return self.here.runners[0].loaded

    @property
    def declared(self) -> nnx.Module:
        """The abstract model, which new parameters must fit."""
        return self.here.declared

    @property
    def order(self) -> LeafOrder:
        """Order of the parameter leaves of all replicas."""
        return self.here.order

    @property
    def places(self) -> StagePlaces:
        return self.order.places

    @property
    def placement(self) -> Placement:
        """Placement over all devices, for arrays outside of pipeline stages."""
        return self.places.whole

    @property
    def processes(self) -> int:
        """Number of processes that must make the same calls (SPMD); worker processes do not
        count."""
        return 1 if self.devices is None else len(self.placement.processes)

    def check_leaves(self) -> None:
        """Raise if parameters were donated to another computation. Workers' cannot be."""
        for runner in self.devices.runners if self.devices else ():
            runner.loaded.check_leaves()

    def program_counts(self) -> ProgramCounts:
        """Compiled and pending programs. Workers compile the same ones, so only one is asked."""
        if self.devices is not None:
            return self.loaded.program_counts()
        answers = self.client.ask(CallWorkers("programs", encoded_arguments("programs")))
        return decoded_answers("programs", answers)[0]

    def wait_until_warm(self, timeout: float | None = None) -> bool:
        """Wait until every program is compiled. Returns False after `timeout` seconds."""
        if self.devices is not None:
            return self.loaded.wait_until_warm(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while self.program_counts().programs_to_come:
            if end is not None and time.monotonic() >= end:
                return False
            time.sleep(GLANCE)
        return True
