"""Decodes sounds from strangers in processes of their own, with limits of memory and time.

In: the bytes of a file. Out: its samples at a model's rate, or a RequestError.
"""

from __future__ import annotations

import os
import struct
from typing import Final

import numpy as np

from jengine.confined.pool import ConfinedPool
from jengine.errors import RequestError

SECONDS = 30.0
MOST_PROCESSES = 2
PROGRAM = "jengine.media.decode_sounds"
RATE: Final = struct.Struct("<I")  # wanted, before the file
NAME = "\0"  # in place of what the sound is called


class SoundDecoders:
    """A few processes, started when they are first needed. From any thread."""

    def __init__(self, seconds: float = SECONDS) -> None:
        size = max(1, min(os.cpu_count() or 1, MOST_PROCESSES))
        self.pool = ConfinedPool(PROGRAM, size=size, seconds=seconds, what=NAME)

    def samples(self, file: bytes, rate: int, what: str) -> np.ndarray:
        """f32[samples] at this rate."""
        try:
            found = self.pool.ask(b"".join((RATE.pack(rate), file)))
        except RequestError as error:
            raise type(error)(str(error).replace(NAME, what)) from None
        return np.frombuffer(found, np.float32)
