"""Ctrl-C while libraries load and steps compile, and deadlines of Python code.

KeyboardInterrupt inside library callbacks or start-up code is swallowed or turned into other
errors. Nothing needs cleanup in these phases, so the process ends at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from jengine.errors import RequestError


@contextmanager
def interrupts_end_the_process() -> Iterator[None]:
    """Context in which Ctrl-C ends the process at once, unless the caller handles SIGINT itself."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def given_up_after(seconds: float, what: str) -> Iterator[None]:
    """Context that raises RequestError about `what` in Python code that runs longer than `seconds`;
    only in the main thread and where the system has timers."""

    def late(number: int, frame: FrameType | None) -> None:
        raise RequestError(f"{what} took longer than {seconds:g} seconds and was given up.")

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
