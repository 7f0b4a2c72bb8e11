"""The process that decodes pictures: of the bytes of a file it makes pixels, or says what is wrong.
See `decoding_process`.
"""

from __future__ import annotations

from jengine.confined.child import Answer, serve
from jengine.confined.frames import Part
from jengine.media.decoding_process import NAME, SHAPE
from jengine.media.images import decoded

MOST_BYTES = 4 * 2**30


def decode(file: bytearray) -> tuple[Part, ...]:
    """The shape and the pixels."""
    pixels = decoded(bytes(file), NAME)
    return SHAPE.pack(*pixels.shape[:2]), pixels.data.cast("B")


def prepare(job: bytearray) -> tuple[Answer, int]:
    """What answers, and its memory."""
    return decode, MOST_BYTES


if __name__ == "__main__":
    serve(prepare)
