"""Decodes untrusted pictures in separate processes with memory and time limits.

In: file contents. Out: sizes, and parts of pictures for the model, or a RequestError. A decoder
that crashes, exhausts memory or hangs costs only its request.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from jengine.confined.process_pool import ConfinedPool
from jengine.errors import RequestError
from jengine.media.patch_layout import PicturePart

SECONDS = 10.0
MOST_PROCESSES = 4
PROGRAM = "jengine.media.decode_pictures"
LENGTH: Final = struct.Struct("<Q")  # length of the head, before head and payload
NAME = "\0"  # placeholder of the picture's name in errors


class Measure(msgspec.Struct, tag=True, array_like=True):
    """Request for sizes of pictures."""

    names: list[str]
    lengths: list[int]  # file sizes


class Cut(msgspec.Struct, tag=True, array_like=True):
    """Request for parts of a picture, given its expected size."""

    name: str
    size: tuple[int, int]
    parts: tuple[PicturePart, ...]
    resample: int


class PictureSizes(msgspec.Struct, array_like=True):
    """(height, width) of pictures, or of a picture followed by its parts."""

    whole: list[tuple[int, int]]
    parts: list[tuple[int, int]] = []


class Decoders:
    """Pool of decoding processes, started at first use. Thread-safe."""

    def __init__(self, seconds: float = SECONDS) -> None:
        size = max(1, min(os.cpu_count() or 1, MOST_PROCESSES))
        self.pool = ConfinedPool(PROGRAM, size=size, seconds=seconds, what=NAME)

    def sizes(self, names: Sequence[str], files: Sequence[bytes]) -> list[tuple[int, int]]:
        """(height, width) of each picture, from file headers."""
        order = Measure(list(names), list(map(len, files)))
        found, _ = self._asked(order, files, names[0])
        return found.whole

    def cut(self, data: bytes, order: Cut) -> tuple[tuple[int, int], list[np.ndarray]]:
        """Return a picture's actual size, and u8[rows, columns, 3] parts; none if the size is not
        the expected one."""
        found, rest = self._asked(order, [data], order.name)
        parts, begin = list[np.ndarray](), 0
        for rows, columns in found.parts:
            end = begin + rows * columns * 3
            parts.append(np.frombuffer(rest[begin:end], np.uint8).reshape(rows, columns, 3))
            begin = end
        return found.whole[0], parts

    def _asked(
        self, order: Measure | Cut, files: Sequence[bytes], name: str
    ) -> tuple[PictureSizes, memoryview]:
        head = msgspec.msgpack.encode(order)
        try:
            found = self.pool.ask(b"".join((LENGTH.pack(len(head)), head, *files)))
        except RequestError as error:
            raise type(error)(str(error).replace(NAME, name)) from None
        told, rest = divided(found)
        return msgspec.msgpack.decode(told, type=PictureSizes), rest


def divided(message: bytearray) -> tuple[memoryview, memoryview]:
    """Split a message into head and payload."""
    view = memoryview(message)
    (length,) = LENGTH.unpack_from(view)
    end = LENGTH.size + length
    return view[LENGTH.size : end], view[end:]
