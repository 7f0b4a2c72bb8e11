"""Starts an engine core in a child process, and ends it with this one.

In: a program and its settings as bytes. Out: a client of the core. The child is started with
subprocess, leads a process group of its own, and is killed by the system when this process dies.
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

import msgspec

from jengine.engine.process.client import ProcessClient
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.private_folder import PrivateFolder
from jengine.errors import EngineDead

# Ties the child to this process, then runs the program.
FIRST = "jengine.engine.process.first"
# Seconds that a core is given to end by itself.
END_SECONDS = 10.0
# Seconds that a core's last message may arrive after its process has ended.
LAST_WORD = 0.3


class CoreJob(msgspec.Struct, frozen=True):
    """What a core process is told at its start, on its standard input."""

    address: str
    parent: int  # the process that starts it
    cpus: list[int]  # that it may use; empty: all
    settings: bytes  # which its program understands


def launch(
    program: str,
    settings: bytes,
    cpus: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    mailbox: Mailbox | None = None,
) -> ProcessClient:
    """Run a module as a core process. Its client can be asked to wait until it is ready.

    `cpus` are the processors that it may use (none: all), `env` is added to its environment, and a
    mailbox may be shared by the clients of several cores.
    """
    folder = PrivateFolder()
    try:
        job = CoreJob(folder.address, os.getpid(), list(cpus), settings)
        child = ChildCore(program, job, folder, env or {})
        client = ProcessClient(folder.address, child, mailbox)
        child.start(lambda how: client.exited(how, LAST_WORD))
    except BaseException:
        folder.remove()
        raise
    return client


class ChildCore:
    """A core process, and the thread that starts it and waits for its end.

    The system kills the process when the thread that started it ends, so that is a thread which
    does nothing else.
    """

    def __init__(
        self, program: str, job: CoreJob, folder: PrivateFolder, env: Mapping[str, str]
    ) -> None:
        self.process = 0
        self._program = program
        self._job = job
        self._folder = folder
        self._env = env
        self._failure: OSError | None = None
        self._started = threading.Event()
        self._ended = threading.Event()

    def start(self, exited: Callable[[str], None]) -> None:
        """Start it. `exited` is told how it ended."""
        atexit.register(self.kill)
        threading.Thread(target=self._run, args=(exited,), name="jengine-core", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise EngineDead(
                f"the engine core cannot be started: {self._failure}. Python is {sys.executable}."
            ) from self._failure

    def dump_stacks(self) -> None:
        """Have it write the stacks of its threads to stderr, whatever it is doing."""
        if self.process and not self._ended.is_set():
            os.kill(self.process, signal.SIGUSR1)

    def end(self) -> None:
        """Return when it has ended, killing it after a while, and remove its socket."""
        atexit.unregister(self.kill)
        if self.process and not self._ended.wait(END_SECONDS):
            self._kill_group()
            self._ended.wait()
        self._folder.remove()

    def kill(self) -> None:
        """End it at once, with all that it started."""
        if not self._ended.is_set():
            self._kill_group()
        self.end()

    def _run(self, exited: Callable[[str], None]) -> None:
        try:
            child = self._popen()
        except OSError as error:
            self._failure = error
            self._started.set()
            return
        self.process = child.pid
        self._started.set()
        # It stays a zombie meanwhile, so its number is not given to another process.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self._kill_group()
        status = child.wait()
        self._ended.set()
        exited(f"the engine core, process {child.pid}, {how_it_ended(status)}")

    def _popen(self) -> subprocess.Popen[bytes]:
        # The paths of this process: the child finds the same modules, and none beside them.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        child = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-m", FIRST, str(os.getpid()), self._program],
            stdin=subprocess.PIPE,
            env={**os.environ, **self._env, "PYTHONPATH": paths},
            process_group=0,
        )
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin as job:  # it died: its end will be noticed
            job.write(msgspec.msgpack.encode(self._job))
        return child

    def _kill_group(self) -> None:
        if not self.process:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"has ended with status {status}; its log says why"
