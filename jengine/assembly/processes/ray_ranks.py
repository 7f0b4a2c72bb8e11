"""Data-parallel ranks as actors on a Ray cluster: the front starts them, and hears how they end.

In: options of Ray and a job for each rank. Out: errors of ranks that cannot start. Ray itself is in
another process, `executor.ray.ranks`, so it need not be imported here. No jax.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jengine.engine.process.owned_process import OwnedProcess
from jengine.errors import ConfigError, EngineDead, JengineError
from jengine.executor.choice import INSTALL
from jengine.executor.ray.ranks_job import RanksJob
from jengine.executor.remote.job import Ended, error_of

logger = logging.getLogger(__name__)
DRIVER = "jengine.executor.ray.ranks"
RANK_PROGRAM = "jengine.assembly.processes.ray_rank:run"


class RayRanks:
    """The driver process, and what it has reported."""

    def __init__(self, options: Mapping[str, Any], devices: int, jobs: Sequence[bytes]) -> None:
        """Start one rank per job, with `devices` devices each."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "data_parallel_backend='ray': Ray is not installed. Install it in the environment "
                f"of every node: {INSTALL['ray']}."
            )
        self.is_ending = False  # ranks that end now are expected to
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
        """Raise the error of a rank that has ended."""
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
