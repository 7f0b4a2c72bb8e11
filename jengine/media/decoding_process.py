"""Decodes pictures from strangers in processes of their own, with limits of memory and time.

In: the bytes of a file. Out: its pixels, or a RequestError. A decoder that crashes, takes too much
memory or does not end costs that request alone: the next one gets a new process.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from jengine.confined.pool import ConfinedPool
from jengine.errors import RequestError

SECONDS = 10.0
PROGRAM = "jengine.media.decode_pictures"
SHAPE: Final = struct.Struct("<II")  # rows and columns, before the pixels
NAME = "\0"  # in place of what the picture is called


class DecodingProcess:
    """Starts with the first picture. From any thread: one picture at a time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._pool = ConfinedPool(PROGRAM, size=1, seconds=seconds, what=NAME)

    def pixels(self, data: bytes, what: str) -> np.ndarray:
        """The picture in a file's bytes."""
        try:
            found = self._pool.ask(data)
        except RequestError as error:
            raise type(error)(str(error).replace(NAME, what)) from None
        rows, columns = SHAPE.unpack_from(found)
        return np.frombuffer(found, np.uint8, offset=SHAPE.size).reshape(rows, columns, 3)
