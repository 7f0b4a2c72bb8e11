"""Suspends full garbage collections during imports, whose objects stay alive."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 2**31 - 1


@contextmanager
def put_off() -> Iterator[None]:
    """Suspend full collections: each would traverse everything imported before."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        if gc.get_threshold() == (young, middle, NEVER):  # else another thread has set it since
            gc.set_threshold(young, middle, old)
