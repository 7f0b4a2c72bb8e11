"""A few confined processes of one kind, started when they are first needed.

In: messages, from any thread. Out: answers, or a RequestError if a message took too long or too
much memory: its process is killed, and the next message gets a new one.
"""

from __future__ import annotations

import math
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from jengine.confined import errand as errands
from jengine.confined.owned_process import OwnedProcess
from jengine.errors import CapacityError, EngineDead, RequestError
from jengine.forks import not_in_forks
from jengine.wire import frames

PATIENCE = 30.0  # seconds for a process to be free
MOST_ANSWER = 2**32  # bytes


class ConfinedPool:
    """At most `size` processes that run `program`, each prepared by `job`."""

    def __init__(
        self,
        program: str,
        job: Callable[[], bytes] = bytes,
        *,
        size: int,
        seconds: float,
        what: str,
    ) -> None:
        """`seconds`: limit per message. `what`: a message's content in errors ("the picture")."""
        self.size = size
        self.given_up = 0  # processes that were killed over a message, or died of one
        self._program = program
        self._job = job
        self._seconds = seconds
        self._what = what
        self._places = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[ConfinedProcess] = []
        self._used: set[ConfinedProcess] = set()
        self._closed = False
        weakref.finalize(self, not_in_forks(end_all), self._idle)

    @property
    def busy(self) -> int:
        """Number of processes at work."""
        return len(self._used)

    @property
    def pids(self) -> list[int]:
        """Pids of all processes."""
        with self._lock:
            return [one.pid for one in (*self._idle, *self._used)]

    def ask(self, asked: frames.Part) -> bytearray:
        """The answer to a message."""
        if not self._places.acquire(timeout=PATIENCE):
            raise CapacityError(
                f"{self._what}: all {self.size} processes for this were busy for {PATIENCE:g} "
                "seconds. Try again later."
            )
        try:
            return self._asked(asked)
        finally:
            self._places.release()

    def close(self) -> None:
        """End all processes, also those that work."""
        with self._lock:
            self._closed = True
            found = [*self._idle, *self._used]
            self._idle.clear()
        for one in found:
            one.close()

    def _asked(self, asked: frames.Part) -> bytearray:
        errand = errands.current.get() or errands.Errand(math.inf)
        while True:
            with errand.starting_a_process():
                process = self._taken()
            before = process.has_answered
            try:
                with errand.run_by(process.kill):
                    until = time.monotonic() + min(self._seconds, errand.left)
                    kind, found = process.ask(asked, until)
            except (ConnectionError, TimeoutError) as error:
                self._drop(process)
                if before and isinstance(error, ConnectionError) and process.status == 0:
                    continue  # it had ended by itself before it was asked
                self.given_up += 1
                raise self._failed(error, errand) from None
            except BaseException:
                self._drop(process)
                raise
            self._give_back(process)
            return self._judged(kind, found)

    def _judged(self, kind: int, found: bytearray) -> bytearray:
        if kind == frames.REFUSED:
            raise RequestError(found.decode(errors="replace"))
        if kind == frames.NO_MEMORY:
            raise RequestError(f"{self._what} takes too much memory. Send less at once.")
        return found

    def _failed(self, error: Exception, errand: errands.Errand) -> RequestError:
        if errand.left <= 0:
            return errand.given_up()
        if isinstance(error, TimeoutError):
            return RequestError(
                f"{self._what} took longer than {self._seconds:g} seconds and was given up."
            )
        return RequestError(
            f"{self._what} ended the process that read it: it takes too much memory, or is broken. "
            "Send less at once."
        )

    def _taken(self) -> ConfinedProcess:
        with self._lock:
            alive = [one for one in self._idle if not one.has_ended]
            self._idle[:] = alive[:-1]
            process = alive[-1] if alive else None
        if process is None:
            process = ConfinedProcess(self._program, self._job())
        with self._lock:
            self._used.add(process)
            closed = self._closed
        if closed:
            process.close()
        return process

    def _give_back(self, process: ConfinedProcess) -> None:
        with self._lock:
            self._used.discard(process)
            if not self._closed:
                self._idle.append(process)
                return
        process.close()

    def _drop(self, process: ConfinedProcess) -> None:
        process.close()
        with self._lock:
            self._used.discard(process)


def end_all(processes: Sequence[ConfinedProcess]) -> None:
    """Kill idle processes, to which no messages can come any more."""
    for one in processes:
        one.kill()


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
        self.has_answered = False
        self._sock, theirs = socket.socketpair()
        self._child = OwnedProcess(program, program, b"", ONE_THREAD, stdin=theirs.fileno())
        wait = frames.until(time.monotonic() + START_SECONDS)
        try:
            with theirs:
                self._child.start(lambda _: None)
            frames.send(self._sock, frames.MESSAGE, (job,), wait)
            frames.receive(self._sock, wait, MOST_ANSWER)
        except (OSError, EngineDead) as error:
            self.close()
            raise NotStarted(
                f"{program} did not start ({type(error).__name__}: {error}); the log says why"
            ) from error

    def ask(self, asked: frames.Part, until: float | None) -> tuple[int, bytearray]:
        """The kind and the content of its answer; TimeoutError after the deadline, ConnectionError
        if it has ended, or answers with more than it may."""
        wait = frames.until(until)
        frames.send(self._sock, frames.MESSAGE, (asked,), wait)
        found = frames.receive(self._sock, wait, MOST_ANSWER)
        self.has_answered = True
        return found

    @property
    def has_ended(self) -> bool:
        """Whether the process has exited."""
        return self._child.has_ended

    @property
    def status(self) -> int:
        """Wait for the process to end; returns its exit status."""
        return self._child.status

    @property
    def pid(self) -> int:
        return self._child.process

    def kill(self) -> None:
        """End it, whatever it is doing. Twice is harmless."""
        self._child.kill_group()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and return when it has ended."""
        self.kill()
        self._child.end()
        self._sock.close()
