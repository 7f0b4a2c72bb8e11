"""Puts off full garbage collections during imports, which make objects that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 2**31 - 1


@contextmanager
def put_off() -> Iterator[None]:
    """Leave out full collections: each would look through all that was imported before."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        if gc.get_threshold() == (young, middle, NEVER):  # else another thread has set it since
            gc.set_threshold(young, middle, old)
