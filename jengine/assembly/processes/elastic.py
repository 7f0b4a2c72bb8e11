"""Elastic data parallelism: adds and removes replicas of a running engine without losing requests.
No jax.

In: an engine whose replicas are processes of this host, and the wanted number. Out: ready new
cores, or ended surplus ones.

Requires a single API process that has started all replicas. A replica being removed gets no new
requests and ends after its last one; after a timeout it stays. A new one gets the other replicas'
settings, and requests once it is ready.
"""

from __future__ import annotations

import os
import threading
import time

from jengine.assembly.engine import Engine
from jengine.assembly.processes.core_shares import shares
from jengine.assembly.processes.cores import CORE_PROGRAM
from jengine.assembly.processes.deployment import Deployment
from jengine.assembly.processes.replica_checks import check_replicas
from jengine.distributed.process_replicas import ProcessReplicas
from jengine.engine.process.client import START_SECONDS
from jengine.engine.process.launch import launch
from jengine.errors import CapacityError, RequestError

DRAIN_SECONDS = 300.0
_one_at_a_time = threading.Lock()


def scale_replicas(engine: Engine, count: int, drain_seconds: float = DRAIN_SECONDS) -> None:
    """Change the number of replicas to `count`. Returns once new ones serve and surplus ones have
    ended.

    Raises CapacityError if a replica still has requests after `drain_seconds`; it stays. Raises
    RequestError unless this process has started all replicas.
    """
    replicas = scalable(engine)
    if count < 1:
        raise RequestError(f"new_data_parallel_size={count}: expected 1 or more.")
    if not _one_at_a_time.acquire(blocking=False):
        raise RequestError("replicas are being added or removed already. Try again when they are.")
    try:
        deadline = time.monotonic() + drain_seconds
        for index in replicas.serving[count:]:
            if not replicas.retire(index, max(deadline - time.monotonic(), 0.0)):
                raise CapacityError(
                    f"core {index} still has requests after {drain_seconds:g} s, and stays. "
                    "Raise drain_timeout, or abort them."
                )
        while len(replicas.serving) < count:
            add_replica(engine, replicas, count)
    finally:
        _one_at_a_time.release()


def scalable(engine: Engine) -> ProcessReplicas:
    """The replicas of an engine. Raises if this process has not started all of them."""
    client = engine.client
    if not isinstance(client, ProcessReplicas):
        raise RequestError(
            "the number of replicas can only change where each has a process of its own: start "
            "with data_parallel_size of 2 or more."
        )
    if engine.args.ranks.elsewhere or not all(core.child is not None for core in client.cores):
        raise RequestError(
            "the number of replicas can only change where one API process has started all of them "
            "on its own host: expected api_server_count=1 and no ranks of other hosts."
        )
    return client


def add_replica(engine: Engine, replicas: ProcessReplicas, count: int) -> None:
    """Start one more core and route requests to it. It gets its share of CPUs or GPUs of `count`;
    running cores keep theirs."""
    args, folder = engine.args, engine.folder
    assert folder is not None, "an engine in other processes has a folder"
    place = replicas.next_place
    share = shares(max(count, place + 1), args.devices_per_replica, os.environ)[place]
    settings = Deployment(args, folder).core(place)
    core = launch(CORE_PROGRAM, settings, share.cpus, share.env, replicas.mailbox, None)
    try:
        ready = core.wait_until_ready(seconds=START_SECONDS)
        first = replicas.cores[replicas.serving[0]]
        check_replicas([first, core], [first.wait_until_ready(), ready])
        replicas.add_core(core)
    except BaseException:
        core.shutdown()
        raise
