"""Starts the processes of a scenario, as a launcher or a person on several hosts would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from jengine.executor.multihost.ending import EXIT_STATUS

ROOT = Path(__file__).parent.parent.parent
# What JAX's client of the coordination service says before it aborts its process.
COORDINATOR_LOST = "Terminating process because the JAX distributed service detected fatal errors"


@dataclass
class Process:
    """One process with what it wrote."""

    handle: subprocess.Popen[str]
    out: IO[str]
    err: IO[str]

    def read(self) -> tuple[str, str]:
        """What it has written so far to stdout and stderr."""
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read())
        return texts[0], texts[1]

    def assert_ends_without(self, rank: int, seconds: float, why: str) -> None:
        """It ends within these seconds, and says why, once process `rank` is gone.

        Process 0 has JAX's coordination service. When that is gone, JAX's own client aborts this
        process, and either of the two that watch may be first.
        """
        status = self.handle.wait(seconds)
        text = self.read()[1]
        if rank == 0 and status == -signal.SIGABRT:
            assert COORDINATOR_LOST in text
        else:
            assert (status, why in text) == (EXIT_STATUS, True), text

    def said(self) -> list[dict[str, Any]]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.read()[0].splitlines() if line[:1] == "{"]


@dataclass
class Launch:
    """All processes of one program."""

    processes: list[Process] = field(default_factory=list)

    def wait(self, seconds: float) -> list[int]:
        """Exit codes in order; an error with the output of all if one does not end."""
        ends = time.monotonic() + seconds
        codes = []
        for process in self.processes:
            try:
                codes.append(process.handle.wait(max(ends - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired as error:
                raise AssertionError(f"still running after {seconds} s:\n{self}") from error
        return codes

    def until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition holds."""
        ends = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < ends, f"not after {seconds} s:\n{self}"
            assert all(p.handle.poll() is None for p in self.processes), f"ended early:\n{self}"
            time.sleep(0.05)

    def __str__(self) -> str:
        parts = []
        for rank, process in enumerate(self.processes):
            out, err = process.read()
            parts.append(f"--- process {rank}: {process.handle.poll()}\n{out[-2000:]}{err[-4000:]}")
        return "\n".join(parts)


@contextmanager
def launched(
    scenario: str, folder: Path, processes: int = 2, devices: int = 1, caches: Path | None = None
) -> Iterator[Launch]:
    """The scenario in so many processes of so many devices each; none is left afterwards.
    `caches`: where each has a compile cache of its own."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    launch = Launch()
    port = free_port()
    with ExitStack() as files:
        try:
            for rank in range(processes):
                command = [sys.executable, "-m", "tests.multihost.program", scenario]
                command += map(str, (rank, processes, port, folder))
                if caches is not None:
                    environment["JAX_COMPILATION_CACHE_DIR"] = str(caches / str(rank))
                out = files.enter_context(tempfile.TemporaryFile("w+"))
                err = files.enter_context(tempfile.TemporaryFile("w+"))
                handle = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=out, stderr=err, text=True
                )
                launch.processes.append(Process(handle, out, err))
            yield launch
        finally:
            for process in launch.processes:
                process.handle.kill()  # one that hangs in a collective outlives anything milder
                process.handle.wait()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
