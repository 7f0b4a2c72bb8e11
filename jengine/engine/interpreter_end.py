"""Keeps steps from running while the interpreter exits.

A daemon thread that returns from XLA after Python's end is unwound through C++, which aborts the
process. The current step is awaited at exit, and no other thread starts one.
"""

from __future__ import annotations

import atexit
import threading
from functools import cache
from typing import Protocol
from weakref import WeakSet

# Longest wait for a step at exit: one that hangs must not block the exit.
LAST_STEP_SECONDS = 10.0


class Stepping(Protocol):
    """An object that runs steps in its callers' threads."""

    def wait_for_step(self, seconds: float) -> None:
        """Return when the current step has ended, or after `seconds`."""
        ...


_steppers: WeakSet[Stepping] = WeakSet()
_ending: list[int] = []  # the thread that ends the interpreter


def end_steps_at_exit(stepper: Stepping) -> None:
    """Wait at exit for a step of `stepper`, which must call `check_not_ending` before each."""
    _steppers.add(stepper)
    _register()


def check_not_ending() -> None:
    """Raise SystemExit in a daemon thread while another thread ends the interpreter."""
    if _ending and threading.get_ident() not in _ending:
        raise SystemExit


@cache
def _register() -> None:
    # Not at import: atexit functions run in reverse order, and JAX's, registered when jax is
    # imported, frees the devices.
    atexit.register(_end_steps)


def _end_steps() -> None:
    _ending.append(threading.get_ident())
    for stepper in list(_steppers):
        stepper.wait_for_step(LAST_STEP_SECONDS)
