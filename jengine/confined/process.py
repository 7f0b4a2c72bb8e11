"""One confined process: started, asked, killed.

In: a module of ours that calls `child.serve`. Out: answers to messages, or an error that says how
it ended. The process belongs to the thread that waits for its end, which lives as long: the system
kills it with this process (`first`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from jengine.confined import frames
from jengine.errors import CapacityError

FIRST = "jengine.confined.first"
START_SECONDS = 60.0
# Libraries that would start a thread for each core, whose stacks are memory too.
ONE_THREAD: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class NotStarted(CapacityError):
    """A confined process did not start, or ended before it was ready."""


class ConfinedProcess:
    """A process that answers one message at a time."""

    def __init__(self, program: str, job: bytes) -> None:
        self._program = program
        self._sock, self._theirs = socket.socketpair()
        self._popen: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._over = threading.Event()
        self._begun = threading.Event()
        self.has_answered = False
        threading.Thread(target=self._live, name="jengine-confined", daemon=True).start()
        self._begun.wait()
        self._prepare(job)

    def ask(self, asked: frames.Part, until: float | None) -> tuple[int, bytearray]:
        """The kind and the content of its answer; TimeoutError after the deadline, EOFError if it
        has ended."""
        try:
            frames.send(self._sock, frames.ASKED, (asked,), until)
            found = frames.receive(self._sock, until)
        except ConnectionError:
            raise EOFError from None
        self.has_answered = True
        return found

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    @property
    def status(self) -> int:
        """Wait for the process to end; returns its exit status."""
        self._over.wait()
        return self._popen.returncode if self._popen is not None else 1

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    def kill(self) -> None:
        """End it, whatever it is doing. Twice is harmless."""
        if self._popen is not None and not self._over.is_set():
            self._popen.kill()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and return when it has ended."""
        self.kill()
        self._over.wait()
        self._sock.close()

    def _live(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-m", FIRST, str(os.getpid()), self._program],
                stdin=self._theirs.fileno(),
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": paths},
            )
        except OSError as error:
            self._failure = error
        self._theirs.close()
        self._begun.set()
        if self._popen is not None:
            self._popen.wait()
        self._over.set()

    def _prepare(self, job: bytes) -> None:
        until = time.monotonic() + START_SECONDS
        try:
            if self._failure is not None:
                raise self._failure
            frames.send(self._sock, frames.ASKED, (job,), until)
            frames.receive(self._sock, until)
        except (OSError, EOFError) as error:
            self.close()
            raise NotStarted(
                f"{self._program} did not start ({type(error).__name__}: {error}); the log says why"
            ) from error
