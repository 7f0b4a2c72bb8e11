"""A server in a separate process, started by its public command line.

In: a model and flags. Out: a port, its processes, its log. Must not know load or faults.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import psutil

from jengine.bench.serve.launched import free_port
from jengine.errors import JengineError

GLANCE = 0.05


class ServerProcessFailed(JengineError, RuntimeError):
    """The server did not start, respond or stop as required."""


class ServerProcess:
    """`jengine serve`; may be restarted after it has ended."""

    def __init__(self, model: str, flags: list[str], log: Path, env: dict[str, str] | None = None):
        self.port = free_port()
        self.log = log
        words = ["serve", model, "--port", str(self.port), *flags]
        self.command = [sys.executable, "-m", "jengine", *words]
        self.env = dict(os.environ if env is None else env)
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[int, psutil.Process] = {}  # every process that it ever had

    def start(self) -> None:
        """Start the process; does not wait until it is ready."""
        with self.log.open("ab") as log:
            self._process = self._popen(log)

    def _popen(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own program
            self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env
        )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def family(self) -> list[psutil.Process]:
        """The server process and its descendants."""
        try:
            top = psutil.Process(self.process.pid)
            found = [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        self._known.update({one.pid: one for one in found})
        return found

    def engines(self) -> list[psutil.Process]:
        """Engine-core processes: descendants that run jengine."""
        return [one for one in self.family()[1:] if _is_python(one)]

    def orphans(self) -> list[psutil.Process]:
        """Descendants that outlived the server process."""
        return [
            one
            for one in self._known.values()
            if one.pid != self.process.pid and one.is_running() and not _is_zombie(one)
        ]

    def resident_bytes(self) -> int:
        """RSS summed over its processes."""
        total = 0
        for one in self.family():
            try:
                total += one.memory_info().rss
            except psutil.Error:
                continue  # it has just ended
        return total

    def wait_until_ended(self, seconds: float) -> int:
        """Wait for exit, and briefly for descendants; returns the status. Raises ServerFailed after
        `seconds`."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ServerProcessFailed(f"the server has not ended within {seconds:g} s") from error
        self._wait_for_orphans()
        return status

    def _wait_for_orphans(self) -> None:
        """Allow descendants a moment to exit after the server process."""
        end = time.monotonic() + GLANCE * 20
        while self.orphans() and time.monotonic() < end:
            time.sleep(GLANCE)

    def terminate(self, seconds: float) -> int:
        """Send SIGTERM; returns the exit status."""
        self.family()
        self.process.send_signal(signal.SIGTERM)
        return self.wait_until_ended(seconds)

    def kill(self) -> None:
        """Kill every process it ever started."""
        self.family()
        for one in self._known.values():
            try:
                one.send_signal(signal.SIGCONT)
                one.kill()
            except psutil.Error:
                continue
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._wait_for_orphans()

    def log_text(self) -> str:
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


def _is_python(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return any("jengine" in word for word in words) and "resource_tracker" not in " ".join(words)


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
