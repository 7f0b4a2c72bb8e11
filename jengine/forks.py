"""What a process ends at its own end, and a fork of it must leave alone.

A forked child inherits what is registered with atexit and weakref.finalize, but none of the
threads, and what would be ended is still the parent's.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def not_in_forks(action: Callable[..., None]) -> Callable[..., None]:
    """A function that calls `action` in this process, and does nothing in a fork of it."""
    owner = os.getpid()

    def act(*given: object) -> None:
        if os.getpid() == owner:
            action(*given)

    return act
