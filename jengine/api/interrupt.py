"""Delays Ctrl-C to the end of a step: an interrupted one would leave the engine inconsistent.

A step is never half done. Ctrl-C is held back until the step in progress has been committed; then
the requests are aborted and the interrupt is raised.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Whether Ctrl-C was pressed while steps ran."""

    def __init__(self) -> None:
        self.pressed = False

    def note(self, _signal: int, _frame: FrameType | None) -> None:
        """A signal handler. A second Ctrl-C does not wait for the step to end."""
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True

    def check(self) -> None:
        """Raise the KeyboardInterrupt that was held back."""
        if self.pressed:
            raise KeyboardInterrupt


@contextmanager
def held_back_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block, where it is raised. The handler is put back.

    Only Python's own handler, in the main thread, is replaced: a program that handles SIGINT
    itself keeps doing so.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupts = Interrupts()
    signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.check()
