"""Holds Ctrl-C back until the end of a step, since an interrupted step would leave the engine
inconsistent.

Once the running step is committed, the interrupt is raised, which aborts the batch's requests.
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
    """Hold Ctrl-C back until the end of the block, where it is raised.

    Only Python's default handler, in the main thread, is replaced (and restored): programs that
    handle SIGINT themselves keep doing so.
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
