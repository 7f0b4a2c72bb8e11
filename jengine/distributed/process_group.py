"""The processes of an engine: a single one, or a leader and followers.

In: the placement of its arrays. Out: this process's core, and agreement with the others while
building it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax

from jengine.config import CacheConfig, ScheduleConfig
from jengine.counts import ProgramTotals
from jengine.distributed.data_parallel import DataParallelCore
from jengine.distributed.follower import FollowingCore
from jengine.distributed.leader import LeadingCore
from jengine.distributed.program_gate import program_gates
from jengine.engine.core import EngineCore
from jengine.engine.protocol import Core
from jengine.errors import ConfigError
from jengine.executor.grammar_masks import GrammarMasks
from jengine.executor.local import LocalExecutor
from jengine.executor.multihost.agreement import digest_of, listed, plural
from jengine.executor.multihost.channel import Channel, FollowerChannel, LeaderChannel, reports
from jengine.executor.multihost.executors import FollowingExecutor, LeadingExecutor
from jengine.executor.multihost.messages import Report, Verdict
from jengine.executor.multihost.parameter_digests import ParameterDigests
from jengine.executor.multihost.rendezvous import meet
from jengine.executor.multihost.settings import Direction, MultihostSettings
from jengine.executor.protocol import Executor
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import WireRequest
from jengine.runner.runner import PlanRunner
from jengine.scheduler.gates import MakeGate
from jengine.scheduler.recorder import Recorder
from jengine.scheduler.refusal import refuse_impossible
from jengine.scheduler.scheduler import Scheduler
from jengine.scheduler.transfers import BlockTransfers
from jengine.weights.abstract import NamedArray
from jengine.wire.message import Message
from sharding.placement import Placement

ProgramSource = Callable[[], ProgramTotals]


@dataclass(frozen=True)
class CoreParts:
    """Parts from which a process group builds its EngineCore."""

    runners: tuple[PlanRunner, ...]  # one per data-parallel replica
    placement: Placement
    schedule: ScheduleConfig
    cache: CacheConfig
    depth: int
    stages: int
    in_turn: bool  # replicas compute one after the other
    watched: Callable[[Executor], GrammarMasks]  # wraps an executor in recorders and grammars
    gates: tuple[MakeGate, ...] = ()  # added to every scheduler
    # (cache, replica index) -> its transfers to host memory; None: blocks stay on the device.
    transfers: Callable[[CacheCoordinator, int], BlockTransfers | None] = lambda *_: None
    launch: Callable[[], None] = lambda: None  # queues the joint program of joint replicas

    def core(
        self,
        executor: Executor,
        programs: ProgramSource,
        replica: int = 0,
        gates: tuple[MakeGate, ...] = (),
    ) -> EngineCore:
        """Build the EngineCore over this executor; `gates` are added to the scheduler's."""
        watched = self.watched(executor)
        cache = CacheCoordinator(self.cache)
        scheduler = Scheduler(
            self.schedule,
            cache,
            depth=self.depth,
            spacing=self.stages,
            gates=(*self.gates, *gates),
            check_drafts=watched.checked_drafts,
            recorder=Recorder(replica),
            transfers=self.transfers(cache, replica),
        )
        return EngineCore(scheduler, watched, self.depth, programs)

    def local_core(self) -> Core:
        """Build the core of a single-process engine: one EngineCore, or a DataParallelCore."""
        cores = [
            self.core(
                LocalExecutor(runner),
                # Replicas share their programs: count them once.
                ProgramTotals if replica else runner.loaded.program_totals,
                replica,
                program_gates(runner.loaded),
            )
            for replica, runner in enumerate(self.runners)
        ]
        if len(cores) == 1:
            return cores[0]
        replicas = self.placement.replicas
        names = [
            f"data-parallel replica {i} of {len(cores)}, on "
            + ", ".join(str(device) for device in replica.mesh.devices.flat)
            for i, replica in enumerate(replicas)
        ]

        def split(values: Mapping[str, jax.Array]) -> list[dict[str, jax.Array]]:
            if self.placement.joint:
                return [dict(values)] * len(self.runners)
            places = [runner.loaded.order.places for runner in self.runners]
            return [
                {path: own.of(path).part(value) for path, value in values.items()} for own in places
            ]

        return DataParallelCore(cores, names, split, self.in_turn, self.launch)


class ProcessGroup(Protocol):
    """The steps of building an engine that synchronise all of its processes."""

    def observed(self, placement: Placement) -> Placement:
        """The placement, changed to digest each parameter that it places."""
        ...

    def agree(self, **values: Any) -> None:
        """Raise ConfigError in every process unless these values are equal in all."""
        ...

    def noted(self, values: Iterable[NamedArray]) -> Iterable[NamedArray]:
        """Pass parameters through, digesting those that their placement did not."""
        ...

    def agree_on_weights(self) -> None:
        """Raise ConfigError in every process unless all loaded the same parameters."""
        ...

    def least(self, number: int) -> int:
        """Minimum over all processes."""
        ...

    def core(self, parts: CoreParts) -> Core: ...

    def leave(self, reason: str) -> None:
        """Tell the others that this process leaves."""
        ...


@contextmanager
def process_group_of(
    placement: Placement, settings: MultihostSettings, direction: Direction | None
) -> Iterator[ProcessGroup]:
    """The group of the processes that own these devices. An exception in the block is sent to the
    other processes.

    With a direction, only the first of several processes gets requests.
    """
    group = _gathered(placement.processes, settings, direction)
    try:
        yield group
    except BaseException as error:
        group.leave(f"it could not build its engine: {type(error).__name__}: {error}")
        raise


def _gathered(
    processes: list[int], settings: MultihostSettings, direction: Direction | None
) -> ProcessGroup:
    own = jax.process_index()
    if own not in processes:
        raise ConfigError(
            f"the model is to be split over devices of {plural(processes)} {listed(processes)}, but"
            f" this is process {own}. Use devices of every process that makes this engine, or give "
            "mesh= with local devices for an engine of this process alone."
        )
    if processes == [own]:
        return SingleProcess()
    return SeveralProcesses(meet(processes, settings), settings, direction)


class SingleProcess:
    def observed(self, placement: Placement) -> Placement:
        return placement

    def agree(self, **values: Any) -> None:
        pass

    def noted(self, values: Iterable[NamedArray]) -> Iterable[NamedArray]:
        return values

    def agree_on_weights(self) -> None:
        pass

    def least(self, number: int) -> int:
        return number

    def core(self, parts: CoreParts) -> Core:
        return parts.local_core()

    def leave(self, reason: str) -> None:
        pass


class SeveralProcesses:
    def __init__(
        self, channel: Channel, settings: MultihostSettings, direction: Direction | None
    ) -> None:
        self._channel = channel
        self._settings = settings
        self._is_directed = direction is not None
        if direction is not None and isinstance(channel, LeaderChannel):
            channel.observers, direction.end_all = direction.observers, channel.end_all
        self._digests = ParameterDigests()

    def observed(self, placement: Placement) -> Placement:
        return replace(placement, observe=self._digests.note)

    def agree(self, **values: Any) -> None:
        items = [(name, digest_of(repr(value).encode())) for name, value in values.items()]
        self._compare(reports("settings", items))

    def noted(self, values: Iterable[NamedArray]) -> Iterator[NamedArray]:
        for named in values:
            self._digests.note_missing([named])
            yield named

    def agree_on_weights(self) -> None:
        self._compare(reports("weights", self._digests.take()))

    def least(self, number: int) -> int:
        return self._compare(reports("cache", [], number)).least

    def core(self, parts: CoreParts) -> Core:
        channel, every = self._channel, self._settings.compare_every
        (runner,) = parts.runners
        local = LocalExecutor(runner)
        if isinstance(channel, FollowerChannel):
            cache = CacheCoordinator(parts.cache)

            def check(wire: WireRequest) -> None:
                refuse_impossible(wire, parts.schedule, cache)

            following = FollowingExecutor(local, channel, every)
            return FollowingCore(following, channel, self._digests, check)
        leading, programs = LeadingExecutor(local, channel, every), runner.loaded.program_totals
        core = parts.core(leading, programs)
        return core if self._is_directed else LeadingCore(core, leading, channel, self._digests)

    def leave(self, reason: str) -> None:
        self._channel.leave(reason)

    def _compare(self, report: Report) -> Verdict:
        verdict = self._channel.agree(report, expect_nothing)
        if verdict.problem is not None:
            raise ConfigError(verdict.problem)
        return verdict


def expect_nothing(*messages: Message) -> None:
    """Message handler while the engine is being built: raises AssertionError for any message."""
    assert not messages, f"{messages[0]} came while the engine was being built"
