"""Starts and stops workers on a Ray cluster: a placement group, and one actor per host.

In: an EngineJob. Out: an executor that sends plans to the first actor over its own TCP connection.
Ray carries only bytes, and only while workers start and end.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec
import ray
from ray.util import get_node_ip_address, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jengine.errors import ConfigError, EngineDead, JengineError
from jengine.executor.multihost.settings import MultihostSettings
from jengine.executor.protocol import EngineJob
from jengine.executor.ray.actor import ActorAddress, Worker
from jengine.executor.ray.options import RayOptions
from jengine.executor.remote.driver import RemoteExecutor
from jengine.executor.remote.job import Job, error_in
from jengine.wire.connection import Connection, Listener
from jengine.wire.doors import Door, new_secret, tcp

# Seconds between checks for a worker that failed while starting.
LOOK_SECONDS = 0.5
# Seconds to wait for resources that another engine is releasing.
PLACE_SECONDS = 60.0
# After one worker failed, the others have this long to report the cause.
GRACE = 5.0


class RayExecutor(RemoteExecutor):
    """Runs plans in Ray actors."""

    @classmethod
    def start(cls, job: EngineJob) -> RayExecutor:
        """Start actors and wait until they can run steps."""
        options = RayOptions.checked(job.options)
        settings = MultihostSettings.checked(job.multihost)
        cluster = Cluster(options)
        try:
            cluster.place(devices_wanted(job.settings))
            connection = cluster.run(job, settings)
            return cls(connection, settings, cluster.workers, cluster.stop)
        except BaseException:
            cluster.stop()
            raise


class Cluster:
    """The Ray resources of one engine: placement group and actors."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options
        self._deadline = time.monotonic() + options.start
        self._actors: list[Any] = []
        self._where: list[ActorAddress] = []
        self._ends: list[Any] = []  # Ray references to the results of the actors' programs
        self._asked: dict[int, Any] = {}  # references to the addresses of restarted actors
        self._gpus = 0  # of each actor
        self._group: Any = None
        self._stopping = threading.Lock()
        self._joined = not ray.is_initialized()
        if self._joined:
            join(options.address)

    @property
    def workers(self) -> list[str]:
        """Host and process id of each worker, by rank."""
        return [f"{where.host} process {where.process}" for where in self._where]

    def place(self, devices: int | None) -> None:
        """Reserve the resources of all workers atomically, and start the actors."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = [int(node.get("GPU", 0)) for node in nodes]
        count, each = self._options.shape(gpus, devices)
        self._reserve(count, {"CPU": self._options.cpus, **({"GPU": each} if each else {})}, nodes)
        self._gpus = each
        self._actors = [self._started(number) for number in range(count)]
        found = self._first_answers([actor.where.remote() for actor in self._actors])
        self._where = [msgspec.msgpack.decode(one, type=ActorAddress) for one in found]

    def _reserve(self, count: int, bundle: dict[str, float], nodes: list[Any]) -> None:
        self._group = placement_group([bundle] * count, strategy="SPREAD")
        if not self._group.wait(min(self._seconds_left, PLACE_SECONDS)):
            raise ConfigError(
                f"Ray has no room for {count} workers with {bundle} each; its nodes have "
                f"{nodes}. Give executor_options={{'workers': ..., 'gpus': ..., 'cpus': ...}}."
            )

    def _started(self, number: int) -> Any:
        return (
            ray.remote(Worker)
            .options(
                num_cpus=self._options.cpus,
                num_gpus=self._gpus,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, number),
                runtime_env={"env_vars": dict(self._options.environment)},
            )
            .remote()
        )

    def _first_answers(self, asked: Sequence[Any]) -> list[bytes]:
        """Wait for the addresses that the actors report on start."""
        try:
            return ray.get(asked, timeout=self._seconds_left)
        except ray.exceptions.GetTimeoutError as error:
            raise self._too_slow() from error
        except ray.exceptions.RayError as error:
            raise ConfigError(f"Ray could not start the workers: {last_line(error)}") from error

    @property
    def _seconds_left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def _too_slow(self) -> ConfigError:
        return ConfigError(
            f"the workers were not ready within {self._options.start:g} s. Loading and compiling "
            "take long? Raise executor_options={'start': ...}."
        )

    def run(self, job: EngineJob, settings: MultihostSettings) -> Connection:
        """Run the program in every actor; return once the first one connects."""
        door = Door(tcp(get_node_ip_address(), 0), new_secret().encode())
        first = self._where[0]
        with Listener(door, settings.silence) as listener:
            parts = [
                Job(
                    settings=dict(job.settings),
                    rank=rank,
                    workers=len(self._actors),
                    coordinator=f"{first.host}:{first.port}",
                    driver=listener.door,
                    multihost=dict(job.multihost),
                )
                for rank in range(len(self._actors))
            ]
            self.begin(job.program, [msgspec.msgpack.encode(part) for part in parts])
            return self._accepted(listener)

    def begin(self, program: str, jobs: Sequence[bytes]) -> None:
        """Start a program in every actor, each with its own job."""
        for actor, job in zip(self._actors, jobs, strict=True):
            self._ends.append(actor.run.remote(program, job))

    def begin_again(self, rank: int, program: str, job: bytes) -> None:
        """Replace an actor and start a program in the new one, once Ray has room for it."""
        ray.kill(self._actors[rank], no_restart=True)
        actor = self._actors[rank] = self._started(rank)
        self._where[rank] = ActorAddress("a node of the cluster", 0, 0)
        self._asked[rank] = actor.where.remote()
        self._ends[rank] = actor.run.remote(program, job)

    def _learn_where(self) -> None:
        """Update the addresses of restarted actors."""
        for rank, asked in list(self._asked.items()):
            if ray.wait([asked], timeout=0)[0]:
                del self._asked[rank]
                with suppress(ray.exceptions.RayError):  # `ended` reports it too
                    self._where[rank] = msgspec.msgpack.decode(ray.get(asked), type=ActorAddress)

    def ended(self, ranks: Sequence[int], seconds: float) -> dict[int, JengineError | None]:
        """Ranks whose programs end within `seconds`, with their errors."""
        self._learn_where()
        waiting = [self._ends[rank] for rank in ranks]
        if not waiting:  # ray.wait refuses an empty list
            return {}
        ended, _ = ray.wait(waiting, num_returns=len(waiting), timeout=seconds)
        return {self._ends.index(end): self._error_of(end) for end in ended}

    def _accepted(self, listener: Listener) -> Connection:
        while self._seconds_left:
            try:
                return listener.accept(LOOK_SECONDS)[1]
            except TimeoutError:
                if ray.wait(self._ends, timeout=0)[0]:
                    self._explain()
        raise self._too_slow()

    def _explain(self) -> NoReturn:
        """Raise the root error that kept a worker from starting, rather than a consequence of
        it."""
        ended, _ = ray.wait(self._ends, num_returns=len(self._ends), timeout=GRACE)
        found = [self._error_of(end) for end in ended]
        errors = [error for error in found if error is not None]
        errors.sort(key=lambda error: isinstance(error, EngineDead))
        raise errors[0] if errors else ConfigError("a worker ended while it was starting.")

    def _error_of(self, end: Any) -> JengineError | None:
        rank = self._ends.index(end)
        where = self.workers[rank]
        try:
            error = error_in(ray.get(end))
            return error and type(error)(f"worker {rank} ({where}): {error}")
        except ray.exceptions.RayError as error:
            kind = EngineDead if isinstance(error, ray.exceptions.RayActorError) else ConfigError
            return kind(f"worker {rank} ({where}) failed: {last_line(error)}")

    def stop(self) -> None:
        """Kill the actors, remove the placement group, and disconnect if this object connected."""
        with self._stopping:
            if ray.is_initialized():
                if self._ends:
                    ray.wait(self._ends, num_returns=len(self._ends), timeout=self._options.stop)
                for actor in self._actors:
                    ray.kill(actor, no_restart=True)
                if self._group is not None:
                    remove_placement_group(self._group)
                if self._joined:
                    ray.shutdown()
            self._actors, self._ends, self._group, self._joined = [], [], None, False


def devices_wanted(settings: Mapping[str, Any]) -> int | None:
    """The requested number of devices, if given."""
    kinds = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    given = [settings[name] for name in kinds if settings.get(name)]
    return math.prod(given) if given else None


def join(address: str | None) -> None:
    """Connect to a cluster or start a local one, with usage reports off. Workers run at normal
    priority (Ray's default is niced): every step waits for them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(address=address, include_dashboard=None if address else False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"cannot join a Ray cluster at {address!r}: {error}") from error


def last_line(error: Exception) -> str:
    """An error's message without Ray's traceback."""
    return str(error).strip().splitlines()[-1]
