"""Exit handlers that do nothing in forked children.

A forked child inherits the handlers of atexit and weakref.finalize, but no threads, and the
resources still belong to the parent.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def not_in_forks(action: Callable[..., None]) -> Callable[..., None]:
    """Wrap `action` so that it does nothing in a fork of this process."""
    owner = os.getpid()

    def act(*given: object) -> None:
        if os.getpid() == owner:
            action(*given)

    return act
