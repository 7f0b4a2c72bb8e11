"""Animated images as videos: all frames of a GIF, WebP or PNG, and their times.

In: a PIL image, a path, or file contents. Out: frames as uint8 [height, width, 3].
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from jengine.errors import RequestError
from jengine.media.images import (
    DECODER_ERRORS,
    MOST_BYTES,
    MOST_PIXELS,
    WHITE,
    file_bytes,
    loaded,
)

MOST_FRAMES = 768
MOVING_FORMATS = ("GIF", "WEBP", "PNG")


class Movie(NamedTuple):
    """Frames and their times."""

    frames: list[np.ndarray]  # u8[height, width, 3]
    seconds: tuple[float, ...]  # frame times; empty: unknown


def is_file(given: Any) -> bool:
    """Whether this is a file or PIL image, which may have several frames."""
    return isinstance(given, (str, Path, bytes, bytearray, memoryview, Image.Image))


def movie_of(given: Any, what: str) -> Movie:
    """All frames in order; `what` names the file in errors."""
    try:
        if isinstance(given, Image.Image):
            return frames_in(given, what)
        data = file_bytes(Path(given), what) if isinstance(given, (str, Path)) else bytes(given)
        if len(data) > MOST_BYTES:
            raise RequestError(f"{what} has {len(data)} bytes; expected at most {MOST_BYTES}.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about broken metadata, and sizes checked here
            return frames_in(Image.open(io.BytesIO(data), formats=MOVING_FORMATS), what)
    except RequestError:
        raise
    except UnidentifiedImageError:
        raise RequestError(
            f"{what} is a file of another kind than {', '.join(MOVING_FORMATS)}. There is no "
            "decoder of video files such as MP4 or WebM: give the frames, an array [frames, "
            "height, width, 3] or a list of pictures."
        ) from None
    except DECODER_ERRORS as error:
        raise RequestError(f"{what} cannot be decoded: {type(error).__name__}.") from None


def frames_in(image: Image.Image, what: str) -> Movie:
    """Frames of an open image, transparency over white."""
    count, before = getattr(image, "n_frames", 1), image.tell()
    width, height = image.size
    if count > MOST_FRAMES:
        raise RequestError(f"{what} has {count} frames; expected {MOST_FRAMES} at most.")
    if width * height * count > MOST_PIXELS:
        raise RequestError(f"{what} has more than {MOST_PIXELS} pixels in all frames.")
    frames, lengths = list[np.ndarray](), list[float]()
    for place in range(count):
        image.seek(place)
        frames.append(loaded(image, what, WHITE))
        lengths.append(float(image.info.get("duration", 0)) / 1000)  # known after decoding
    image.seek(before)
    begins = np.cumsum([0.0, *lengths[:-1]])
    return Movie(frames, tuple(map(float, begins)) if all(lengths) else ())
