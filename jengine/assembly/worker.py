"""A worker process of a remote executor: builds its part of the engine, runs plans.

In: a Job as bytes. Out: how it ended, as bytes. The first worker serves the driver, the others
follow it. Must not know who started this process.
"""

from __future__ import annotations

from typing import NoReturn

import jax
import msgspec

from jengine.assembly.device_side import device_side
from jengine.assembly.engine import DeviceSide
from jengine.assembly.model_source import open_model_source
from jengine.assembly.progress import progress_factory
from jengine.assembly.settings.args import EngineArgs
from jengine.distributed.follower import FollowingCore
from jengine.engine.core import EngineCore
from jengine.errors import EngineDead, JengineError, UnexpectedCompile
from jengine.executor.multihost.ending import end_process
from jengine.executor.multihost.settings import Direction, MultihostSettings
from jengine.executor.protocol import Capacity
from jengine.executor.remote.job import Ended, Job, ended_with
from jengine.executor.remote.plan_server import PlanServer
from jengine.plugin_loading import load_plugins
from jengine.runner.disk.compile_cache import enable_compile_cache
from jengine.wire.connection import connect


def run(data: bytes) -> bytes:
    """Run a worker until the driver shuts it down."""
    job = msgspec.msgpack.decode(data, type=Job)
    try:
        load_plugins()
        if job.workers > 1:
            jax.distributed.initialize(
                job.coordinator, job.workers, job.rank, coordinator_bind_address=job.coordinator
            )
        work(job)
    except JengineError as error:
        return ended_with(error)
    if job.workers > 1:
        jax.distributed.shutdown()
    return msgspec.msgpack.encode(Ended())


def work(job: Job) -> None:
    """Build this worker's part of the engine, then run the plans that arrive."""
    # The secret is in the job, which only Ray carries.
    secret = {"data_parallel_secret": (job.driver.secret or b"").decode()}
    args = EngineArgs.checked("worker", multihost=job.multihost, **{**job.settings, **secret})
    # Drivers do not ask workers about pending programs.
    args.compilation_config = {**args.compilation, "wait_for": "all"}
    enable_compile_cache(args.compilation.get("cache_dir"))
    direction = Direction()
    source = open_model_source(args.groups.model)
    side = device_side(args.groups, source, progress_factory(False), direction)
    if isinstance(side.core, FollowingCore):
        follow(side.core)
    else:
        lead(job, side, direction)


def follow(core: FollowingCore) -> str:
    """Run the first worker's plans until it leaves. Returns why it left."""
    while True:
        try:
            core.step()
        except UnexpectedCompile:
            continue  # the first worker had the same error, and reports it
        except EngineDead as error:
            core.shutdown()
            return str(error)


def lead(job: Job, side: DeviceSide, direction: Direction) -> None:
    """Run the driver's plans and send it their outputs, until it leaves."""
    settings = MultihostSettings.checked(job.multihost)
    server = PlanServer(connect(job.driver, job.rank, settings.silence), settings)
    direction.observers.append(server.tell_end)
    assert isinstance(side.core, EngineCore), f"a worker cannot lead a {type(side.core).__name__}"

    def end_alone(reason: str) -> NoReturn:
        server.tell_end(reason)
        end_process(f"process {job.rank} stops: {reason}")

    capacity = Capacity(side.schedule, side.cache, side.depth, jax.default_backend())
    server.serve(side.core.executor, direction.end_all or end_alone, capacity)
