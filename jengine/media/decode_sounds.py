"""Program of a sound-decoding process; see `sounds`."""

from __future__ import annotations

from jengine.confined.child import Answer, Part, serve
from jengine.media.audio import samples_of
from jengine.media.sound_files import read_file
from jengine.media.sounds import NAME, RATE

MOST_BYTES = 2 * 2**30  # memory limit


def answer(message: bytearray) -> tuple[Part, ...]:
    """Answer with samples, f32[samples]."""
    (rate,) = RATE.unpack_from(message)
    given = read_file(bytes(memoryview(message)[RATE.size :]), NAME)
    return (samples_of(given, rate, NAME).data.cast("B"),)


def prepare(job: bytearray) -> tuple[Answer, int]:
    """The answering function and its memory limit."""
    return answer, MOST_BYTES


if __name__ == "__main__":
    serve(prepare)
