"""Ends this process from any thread, even while its main thread hangs in a collective.

A JAX collective whose peer is gone never returns, so exiting is the only way out.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

# Exit status of a process that ends because another one failed (EX_UNAVAILABLE).
EXIT_STATUS = 69
FLUSH_SECONDS = 1.0


def end_process(reason: str) -> NoReturn:
    """Write the reason to stderr and exit at once."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"jengine: {reason}\n".encode())
    for flush in (sys.stdout.flush, sys.stderr.flush):
        _try_for_a_while(flush)
    os._exit(EXIT_STATUS)


def _try_for_a_while(action: Callable[[], None]) -> None:
    """Write with a timeout: a hanging thread may hold the stream's lock."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(FLUSH_SECONDS)
