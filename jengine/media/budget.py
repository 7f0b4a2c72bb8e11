"""Memory budget for decoding media.

In: bytes that decoding will take. Out: a reservation, once others are released, or an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from jengine.confined import errand as errands
from jengine.errors import CapacityError, RequestError

MIB: Final = 2**20
FILE_BYTES = 64 * MIB  # total file size of one request
# Decoded pixels at 3 bytes each: per request, and over all requests at any time.
REQUEST_BYTES = 1024 * MIB
SERVER_BYTES = 1024 * MIB
# Decoded samples over all requests at any time.
SOUNDS_BYTES = 1024 * MIB
SOUND_BYTES = 512 * MIB  # of one sound: all channels, 4 bytes per sample
PATIENCE = 30.0  # longest wait in seconds without a request deadline


class Budget:
    """Byte budget shared by all requests. Thread-safe."""

    def __init__(self, most: int = SERVER_BYTES, what: str = "pictures") -> None:
        self.most, self.what = most, what
        self.taken = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> int:
        """Reserve up to `size` bytes (capped at the total), waiting for others; returns the amount.
        To rule out deadlock, holders must not wait for more."""
        errand, size = errands.current.get(), min(size, self.most)
        seconds = PATIENCE if errand is None else max(errand.left, 0.0)
        with self._changed:
            if not self._changed.wait_for(lambda: self.taken + size <= self.most, seconds):
                if errand is not None:
                    errand.check()
                raise CapacityError(
                    f"{self.what} of other requests take {self.taken} bytes of "
                    f"{self.most}, and this one needs {size}. Try again later."
                )
            self.taken += size
        return size

    def give_back(self, size: int) -> None:
        """Release bytes. Reentrant: a finalizer may call it at any moment."""
        with self._changed:
            self.taken -= size
            self._changed.notify_all()

    @contextmanager
    def room_for(self, size: int) -> Iterator[None]:
        """Reserve bytes within the context."""
        taken = self.take(size)
        try:
            yield
        finally:
            self.give_back(taken)


def check_request(name: str, size: int, most: int) -> None:
    """Raise RequestError if a request's media exceed the per-request limit."""
    if size > most:
        raise RequestError(
            f"{name} of the request take {size} bytes; expected at most {most} in all. Send fewer "
            "or smaller ones."
        )
