"""Background warm-up: one thread compiles the remaining programs while steps run.

In: the programs of every replica and the keys still to compile. Out: programs, one at a time, the
most requested first. Must not know steps or requests.

The largest forward and the heads for plain sampling (`ProgramList.first`) are compiled before: they
size the cache and run the first requests. This thread compiles the rest, in the order of
`ProgramList.later` until steps request some. A step whose exact program is missing is padded to the
smallest compiled bucket that covers it and whose sampling slots have a compiled sampler.

XLA's CPU client generates code in the threads that run steps, whose priority cannot be lowered (see
`jengine/bench/log.md`). So this thread pauses between compiles while steps run and none lacks a
program.

Programs are loaded one by one, and each load makes XLA drop its CUDA graphs, which the next runs
capture again: JAX has no public way to compile first and load several together. With
`compilation_config={"wait_for": "all"}` all are loaded before the first request.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence

from jengine.runner.programs.programs import Programs
from jengine.runner.programs.warm_up import compile_in_turn
from jengine.runner.variants.program_list import Key

logger = logging.getLogger(__name__)
# Added to the thread's niceness. The thread holds the GIL only briefly, so a low priority does not
# delay threads that wait for the GIL.
NICENESS = 10
# Seconds between checks for Ctrl-C while waiting.
GLANCE = 0.1
# While steps run, each compile is followed by RESTS / cores pauses of its length: a compile that
# takes a third of two cores then costs requests 3 %.
RESTS = 20
LEAST_REST = 0.1  # seconds, longer than most steps
DOZE = 0.02  # seconds between checks whether to end a pause


class BackgroundWarmUp:
    """Compiles the programs left over by warm-up. Ends with its engine or the process."""

    def __init__(self, replicas: Sequence[Programs], wanted: Iterable[Key]) -> None:
        # Weak, so that an abandoned engine is freed and its programs are not compiled.
        self._replicas = [weakref.ref(programs) for programs in replicas]
        self._left = list(wanted)
        self._failures: list[Exception] = []
        self._stopped = threading.Event()
        self._hurried = threading.Event()  # a caller waits for all programs
        self._ledger = replicas[0].ledger
        for programs in replicas:
            programs.expect_later(self._left)
        # Not a daemon: killing a thread inside the compiler crashes the process, so Python waits
        # for it at exit. It checks between programs whether to stop.
        self._thread = threading.Thread(target=self._run, name="jengine-warm-up", daemon=False)

    def start(self) -> None:
        self._thread.start()

    def compiles(self, key: Key) -> bool:
        """Whether this program is still queued and has not failed."""
        return key in self._left and self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the program that is being compiled, and wait for it."""
        self._stopped.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the thread, which skips its pauses from now on. Returns whether everything is
        compiled; raises the first compile error."""
        self._hurried.set()
        end = None if timeout is None else time.monotonic() + timeout
        # A join without a limit would not notice Ctrl-C on every platform.
        while self._thread.is_alive() and (end is None or time.monotonic() < end):
            left = GLANCE if end is None else min(GLANCE, max(end - time.monotonic(), 0.0))
            self._thread.join(left)
        if self._failures:
            raise self._failures[0]
        return not self._left and not self._thread.is_alive()

    def _run(self) -> None:
        lower_priority()
        began, total = time.perf_counter(), len(self._left)
        while self._left and self._may_go_on():
            steps, at = self._ledger.hits, time.perf_counter()
            if not self._compile_next():
                break
            self._rest(time.perf_counter() - at, steps)
        made = total - len(self._left) - len(self._failures)
        logger.info("%d of %d programs compiled while serving, in %.1f s",
                    made, total, time.perf_counter() - began)  # fmt: skip

    def _may_go_on(self) -> bool:
        # While Python waits for this thread at exit, the main thread is not alive.
        return not self._stopped.is_set() and threading.main_thread().is_alive()

    def _rest(self, seconds: float, steps: int) -> None:
        """Pause after a compile that took `seconds`, as long as steps run without missing a
        program. `steps`: step count when it began."""
        for _ in range(RESTS // (os.cpu_count() or 1)):
            before, steps = steps, self._ledger.hits
            if steps == before:
                return
            end = time.perf_counter() + max(seconds, LEAST_REST)
            while time.perf_counter() < end:
                if self._is_urgent() or not self._may_go_on():
                    return
                self._stopped.wait(DOZE)

    def _is_urgent(self) -> bool:
        """Whether to skip the pause: a caller waits for all programs, a step has asked for a queued
        one, or none is left."""
        return (
            self._hurried.is_set() or not self._left or any(map(self._ledger.asked_for, self._left))
        )

    def _compile_next(self) -> bool:
        """Compile the most requested program; False if the engine is gone."""
        replicas = [programs for one in self._replicas if (programs := one()) is not None]
        if len(replicas) < len(self._replicas):
            return False
        # Ties keep their order: `max` takes the first.
        key = max(self._left, key=replicas[0].ledger.asked_for)
        try:
            for programs, compiled, entry in compile_in_turn(replicas, key):
                programs.keep(compiled, entry)
        except Exception as error:  # raised by `wait`; larger programs run these steps meanwhile
            self._failures.append(error)
            logger.exception("compiling step %s with features %s while serving failed; its steps "
                             "run in a larger program", *key)  # fmt: skip
        self._left.remove(key)
        for programs in replicas:
            programs.tell()
        return True


def lower_priority() -> None:
    """Lower this thread's priority below the step thread's. Linux only: on other systems it is per
    process."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
