"""Decodes untrusted sounds in separate processes with memory and time limits.

In: file contents. Out: samples at a model's rate, or a RequestError.
"""

from __future__ import annotations

import os
import struct
import weakref
from typing import Final

import numpy as np

from jengine.confined.process_pool import ConfinedPool
from jengine.errors import RequestError
from jengine.media.budget import SOUNDS_BYTES, Budget
from jengine.media.sound_files import MOST_SECONDS

SECONDS = 30.0
MOST_PROCESSES = 2
PROGRAM = "jengine.media.decode_sounds"
RATE: Final = struct.Struct("<I")  # requested sampling rate, before the file's bytes
NAME = "\0"  # placeholder of the sound's name in errors


class SoundDecoders:
    """Pool of decoding processes, started at first use. Thread-safe."""

    def __init__(self, seconds: float = SECONDS) -> None:
        size = max(1, min(os.cpu_count() or 1, MOST_PROCESSES))
        self.budget = Budget(SOUNDS_BYTES, "sounds")
        self.pool = ConfinedPool(PROGRAM, size=size, seconds=seconds, what=NAME)

    def samples(self, file: bytes, rate: int, what: str) -> np.ndarray:
        """Samples f32 at `rate`, counted in the memory budget until garbage-collected."""
        taken = self.budget.take(4 * rate * int(MOST_SECONDS))  # until the length is known
        kept = 0
        try:
            found = np.frombuffer(self._ask(file, rate, what), np.float32)
            kept = min(found.nbytes, taken)
            weakref.finalize(found, self.budget.give_back, kept)
        finally:
            self.budget.give_back(taken - kept)
        return found

    def _ask(self, file: bytes, rate: int, what: str) -> bytearray:
        try:
            return self.pool.ask(b"".join((RATE.pack(rate), file)))
        except RequestError as error:
            raise type(error)(str(error).replace(NAME, what)) from None
