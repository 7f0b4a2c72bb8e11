"""Bounds host memory held by asynchronous transfers to devices.

In: arrays as they are put on devices, before the copy completes. Out: backpressure. Must not know
files.
"""

from __future__ import annotations

from collections import deque

import jax

# Bytes of parameters in transfer to devices at once. A larger parameter is transferred alone.
MOST_IN_FLIGHT = 2**29


class TransferLimit:
    """Limits the bytes of host arrays that are being copied to devices."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[jax.Array, int]] = deque()
        self._bytes = 0

    def make_room(self, size: int) -> None:
        """Block until `size` more bytes may be in flight, oldest transfer first."""
        while self._in_flight and self._bytes + size > MOST_IN_FLIGHT:
            array, done = self._in_flight.popleft()
            jax.block_until_ready(array)
            self._bytes -= done

    def add(self, array: jax.Array, size: int) -> None:
        """Record an array of `size` bytes just put on its devices."""
        self._in_flight.append((array, size))
        self._bytes += size
