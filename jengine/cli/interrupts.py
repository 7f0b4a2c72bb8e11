"""What interrupts the main thread: Ctrl-C while libraries load and steps compile, and deadlines.

A KeyboardInterrupt raised inside a library's callback or start-up code is swallowed there or turned
into another error. Nothing needs to be finished in these phases, so the process ends at once.
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
    """Ctrl-C ends the process at once, unless the caller's program handles it itself."""
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
    """Code of Python that runs longer within gets a RequestError, where the system has timers and
    this is the main thread. `what` names it."""

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
