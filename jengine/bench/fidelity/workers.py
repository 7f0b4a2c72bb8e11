"""Runs checks in a worker process, which is replaced for another environment, or when a draw
crashes or hangs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jengine.bench.fidelity.child_process import ChildEnded, ChildProcess, EndsWithBlock
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS, QUICK_XLA

PROGRAM = (sys.executable, "-m", "jengine.bench.fidelity.worker")
# Programs run a few times each: a quick compile is worth more than a quick program.
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": QUICK_XLA,
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONFAULTHANDLER": "1",
}


class Workers(EndsWithBlock):
    """At most one worker at a time; the last one ends with the block."""

    def __init__(self, limit_s: float, program: Sequence[str] = PROGRAM) -> None:
        self.limit_s = limit_s  # of one draw
        self._program = program
        self._worker: ChildProcess | None = None
        self._environment: Mapping[str, str] = {}

    def check(self, family: str, number: int, implementation: str) -> dict[str, Any]:
        """The worker's result, or how it ended."""
        job = {"family": family, "number": number, "implementation": implementation}
        try:
            return self.ask(job, IMPLEMENTATIONS[implementation].environment)
        except ChildEnded as end:
            return {"broke": str(end)}

    def ask(self, job: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
        """The answer of a worker in this environment. Raises Ended if it dies or is late."""
        worker = self._for(environment)
        try:
            return worker.ask(job, limit_s=self.limit_s)
        except ChildEnded:
            self.close()
            raise

    def _for(self, environment: Mapping[str, str]) -> ChildProcess:
        if environment != self._environment:
            self.close()
        if self._worker is None:
            self._environment = environment
            self._worker = ChildProcess(self._program, {**os.environ, **QUICK, **environment})
            self._worker.ask({})  # its imports are no draw's time
        return self._worker

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    def close(self) -> None:
        """Let the worker exit; the next draw starts another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
