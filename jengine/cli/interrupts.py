"""Ctrl-C while libraries load and steps compile.

A KeyboardInterrupt raised inside a library's callback or start-up code is swallowed there or turned
into another error. Nothing needs to be finished in these phases, so the process ends at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
