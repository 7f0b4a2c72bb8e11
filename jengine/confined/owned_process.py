"""A child process that the system kills when this process dies.

In: a module and its standard input. Out: the process, and a callback at its exit. It is started
with subprocess and leads a process group. Must not know what it does.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from jengine.errors import EngineDead
from jengine.forks import not_in_forks

# Ties the child to this process, then runs the program.
FIRST = "jengine.confined.bootstrap"
# Seconds that it is given to end by itself.
END_SECONDS = 10.0


class Child(Protocol):
    """A child process as its owner sees it."""

    def end(self) -> None:
        """Wait for its exit, killing it after a timeout, and clean up."""
        ...

    def kill(self) -> None:
        """Kill it at once and clean up."""
        ...

    def dump_stacks(self) -> None:
        """Have it write its threads' stacks to stderr, whatever it is doing."""
        ...


class OwnedProcess:
    """A child process and the thread that starts and reaps it.

    The parent-death signal follows the starting thread, not the process, so that thread does
    nothing else.
    """

    def __init__(
        self,
        name: str,
        program: str,
        job: bytes,
        env: Mapping[str, str],
        *,
        stdin: int | None = None,
        open_files: Sequence[int] = (),
        clean: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` is for messages. It reads `job` from its standard input, unless that is the open
        file `stdin`. `env` is added to this environment, `open_files` are inherited, and `clean`
        runs after its exit."""
        self.process = 0
        self._name = name
        self._program = program
        self._job = job
        self._env = env
        self._stdin = stdin
        self._open_files = tuple(open_files)
        self._clean = clean
        self._failure: OSError | None = None
        self._at_exit = not_in_forks(self.kill)
        self._started = threading.Event()
        self._ended = threading.Event()
        self._status = 1

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def status(self) -> int:
        """Its exit status, once it has ended."""
        self._ended.wait()
        return self._status

    def start(self, exited: Callable[[str], None]) -> None:
        """Start it; `exited` is called with a description of its exit. Raises EngineDead if it
        cannot start."""
        atexit.register(self._at_exit)
        thread = threading.Thread(
            target=self._run, args=(exited,), name="jengine-child", daemon=True
        )
        thread.start()
        self._started.wait()
        if self._failure is not None:
            atexit.unregister(self._at_exit)
            raise EngineDead(
                f"{self._name} cannot be started: {self._failure}. Python is {sys.executable}."
            ) from self._failure

    def signal(self, number: int) -> None:
        """Send a signal, unless it has exited."""
        if self.process and not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.process, number)

    def dump_stacks(self) -> None:
        self.signal(signal.SIGUSR1)

    def end(self) -> None:
        if self.process and not self._ended.wait(END_SECONDS):
            self.kill_group()
            self._ended.wait()
        self._clean()

    def kill(self) -> None:
        """Kill its process group at once, wait for its exit and clean up."""
        self.kill_group()
        self.end()

    def kill_group(self) -> None:
        """Kill its process group, unless it has exited."""
        if self.process and not self._ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.process, signal.SIGKILL)

    def _run(self, exited: Callable[[str], None]) -> None:
        try:
            child = self._popen()
        except OSError as error:
            self._failure = error
            self._ended.set()
            self._started.set()
            return
        self.process = child.pid
        self._started.set()
        # It stays a zombie meanwhile, so its number is not given to another process.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.kill_group()
        self._status = child.wait()
        self._ended.set()
        atexit.unregister(self._at_exit)
        exited(f"{self._name}, process {child.pid}, {how_it_ended(self._status)}")

    def _popen(self) -> subprocess.Popen[bytes]:
        # The paths of this process: the child finds the same modules, and none beside them.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        child = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-m", FIRST, str(os.getpid()), self._program],
            stdin=subprocess.PIPE if self._stdin is None else self._stdin,
            env={**os.environ, **self._env, "PYTHONPATH": paths},
            process_group=0,
            pass_fds=self._open_files,
        )
        if child.stdin is not None:
            with suppress(BrokenPipeError), child.stdin as job:  # it died: its end will be noticed
                job.write(self._job)
        return child


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"has ended with status {status}; its log says why"
