"""Ends this process from any thread, also while its main thread hangs in a collective.

JAX cannot give up a collective whose other side is gone, so leaving is the only way not to hang.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

# The status of a process that ends because of another one (EX_UNAVAILABLE).
EXIT_STATUS = 69
FLUSH_SECONDS = 1.0


def end_process(reason: str) -> NoReturn:
    """Say why on stderr and leave at once."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"jengine: {reason}\n".encode())
    for flush in (sys.stdout.flush, sys.stderr.flush):
        _try_for_a_while(flush)
    os._exit(EXIT_STATUS)


def _try_for_a_while(action: Callable[[], None]) -> None:
    """A stream whose lock is held by a thread that hangs is not waited for."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(FLUSH_SECONDS)
