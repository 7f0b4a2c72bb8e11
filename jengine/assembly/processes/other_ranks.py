"""Data-parallel ranks that are no child processes of this one. No jax.

In: a Deployment. Out: their cores' addresses, once they have joined. Ranks of other hosts join by
themselves (`--headless`); those on Ray are started here.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import jengine
from jengine.assembly.processes.deployment import Deployment
from jengine.confined.owned_process import OwnedProcess
from jengine.distributed.joining import JoinDesk
from jengine.engine.process.startup import Tell
from jengine.errors import ConfigError, EngineDead, JengineError
from jengine.executor.choice import INSTALL
from jengine.executor.ray.ranks_job import RanksJob
from jengine.executor.remote.job import Ended, error_of
from jengine.wire.doors import Door, checked_host, tcp


def other_ranks(deployment: Deployment) -> OtherRanks | None:
    """Ranks of other hosts; None if the engine has none."""
    return OtherRanks(deployment) if deployment.args.ranks.elsewhere else None


class OtherRanks:
    """Accepts the cores of other hosts, and owns the Ray driver if ranks run on Ray."""

    def __init__(self, deployment: Deployment) -> None:
        args = deployment.args
        host = checked_host("data_parallel_address", deployment.address)
        door = Door(tcp(host, args.data_parallel_rpc_port), deployment.secret)
        others = range(len(args.ranks.local), args.ranks.size)
        self._desk = JoinDesk(door, others, jengine.__version__)
        self._ray: RayRanks | None = None
        if args.data_parallel_backend == "ray":
            try:
                self._ray = RayRanks(
                    args.data_parallel_options or {}, args.devices_per_replica,
                    [deployment.on_ray(host, rank) for rank in others],
                )  # fmt: skip
            except BaseException:
                self._desk.close()
                raise

    def wait(self, tell: Tell, seconds: float) -> list[str]:
        """Wait for the addresses of all ranks' cores, in order of rank."""
        return self._desk.wait(tell, seconds, self._check)

    def when_back(self, tell: Callable[[int, str], None]) -> None:
        """Register a callback (rank, address) for cores that have rejoined."""
        self._desk.when_back(tell)

    def close(self) -> None:
        """Stop accepting cores and stop the Ray driver. Other hosts' cores end when they lose the
        front."""
        if self._ray is not None:
            self._ray.is_ending = True
        self._desk.close()
        if self._ray is not None:
            self._ray.stop()

    def _check(self) -> None:
        if self._ray is not None:
            self._ray.check()


logger = logging.getLogger(__name__)
DRIVER = "jengine.executor.ray.ranks"
RANK_PROGRAM = "jengine.assembly.processes.ray_rank:run"


class RayRanks:
    """The driver process of ranks on Ray, and its reports."""

    def __init__(self, options: Mapping[str, Any], devices: int, jobs: Sequence[bytes]) -> None:
        """Start one rank per job, with `devices` devices each."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "data_parallel_backend='ray': Ray is not installed. Install it in the environment "
                f"of every node: {INSTALL['ray']}."
            )
        self.is_ending = False  # the end of ranks is expected
        self._failure: JengineError | None = None
        reading, writing = os.pipe()
        job = RanksJob(dict(options), devices, RANK_PROGRAM, list(jobs), writing)
        self._driver = OwnedProcess(
            "the driver of the ranks on Ray", DRIVER, msgspec.msgpack.encode(job), {},
            open_files=[writing],
        )  # fmt: skip
        try:
            self._driver.start(self._exited)
        finally:
            os.close(writing)
        threading.Thread(
            target=self._listen, args=(reading,), name="jengine-ray", daemon=True
        ).start()

    def check(self) -> None:
        """Raise the error of a rank that has failed."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End all ranks and leave the cluster."""
        self.is_ending = True
        self._driver.signal(signal.SIGTERM)
        self._driver.end()

    def _listen(self, file: int) -> None:
        with os.fdopen(file, "rb") as reports:
            for line in reports:
                self._fail(error_of(msgspec.json.decode(line, type=Ended)))

    def _exited(self, how: str) -> None:
        self._fail(EngineDead(how))

    def _fail(self, error: JengineError | None) -> None:
        if error is None or self.is_ending:
            return
        logger.error("A data-parallel rank on Ray has ended: %s", error)
        self._failure = self._failure or error
