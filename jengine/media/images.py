"""Images as users give them, to byte arrays; any problem is a RequestError.

In: a PIL image, an array, a path, or file contents. Out: uint8 [height, width, 3].
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from jengine.errors import RequestError

MOST_PIXELS = 178_956_970
MOST_BYTES = 32 * 2**20  # of a file
WHITE = (255, 255, 255)
ORIENTATION, TURNED = 0x0112, range(5, 9)  # EXIF tag, and its values that swap rows and columns
# Errors of decoders on broken files.
DECODER_ERRORS = (
    OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, AttributeError,
    OverflowError, EOFError, RuntimeError, MemoryError, AssertionError, ArithmeticError,
    Image.DecompressionBombError, struct.error,
)  # fmt: skip
# Formats that are opened: plain pictures, whose decoders are in wide use.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def pixels_of(given: Any, what: str = "image") -> np.ndarray:
    """Pixels as uint8 [height, width, 3]; `what` names the image in errors."""
    if isinstance(given, Image.Image):
        check_size(given, what)
        return loaded(given, what, background=None)
    if isinstance(given, (bytes, bytearray, memoryview)):
        return decoded(bytes(given), what)
    if isinstance(given, (str, Path)):
        return decoded(file_bytes(Path(given), what), what)
    if hasattr(given, "shape") and hasattr(given, "dtype"):
        return array_pixels(np.asarray(given), what)
    raise RequestError(
        f"{what} is a {type(given).__name__}; expected a PIL image, an array of numpy or JAX, a "
        "path or the bytes of a file."
    )


def file_bytes(path: Path, what: str) -> bytes:
    """Contents of a file within the size limit. Raises RequestError."""
    try:
        size = path.stat().st_size
        if size <= MOST_BYTES:
            return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{what}: cannot read {path}: {error.strerror}.") from None
    raise RequestError(f"{what}: {path} has {size} bytes; expected at most {MOST_BYTES}.")


def decoded(data: bytes, what: str) -> np.ndarray:
    """Decode a file: EXIF orientation applied, transparency over white."""
    with opened(data, what) as image:
        return np.array(plain(image, what))


def size_of(data: bytes, what: str) -> tuple[int, int]:
    """(height, width) from the file header, EXIF orientation applied, without decoding."""
    with opened(data, what) as image:
        # A PNG may have its EXIF after the pixels, where only decoding finds it.
        is_behind = image.format == "PNG" and "exif" not in image.info
        turned = not is_behind and image.getexif().get(ORIENTATION) in TURNED
        return image.size if turned else image.size[::-1]


@contextmanager
def opened(data: bytes, what: str) -> Iterator[Image.Image]:
    """Open a single-frame image within the size limits; errors inside the context become
    RequestErrors too."""
    if len(data) > MOST_BYTES:
        raise RequestError(f"{what} has {len(data)} bytes; expected at most {MOST_BYTES}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about broken metadata, and sizes checked here
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            check_size(image, what)
            yield image
    except RequestError:
        raise
    except MemoryError:
        raise RequestError(f"{what} takes too much memory to be decoded.") from None
    except UnidentifiedImageError:
        raise RequestError(
            f"{what} is no picture that can be read; expected {', '.join(FORMATS)}."
        ) from None
    except DECODER_ERRORS as error:
        raise RequestError(f"{what} cannot be decoded: {type(error).__name__}.") from None


def check_size(image: Image.Image, what: str) -> None:
    """Refuse oversized and animated images by their header."""
    width, height = image.size
    if width < 1 or height < 1 or width * height > MOST_PIXELS:
        raise RequestError(
            f"{what} has {width} x {height} pixels; expected 1 to {MOST_PIXELS} in all."
        )
    frames = getattr(image, "n_frames", 1)
    if frames != 1:
        raise RequestError(f"{what} is animated: it has {frames} frames; expected one.")


def plain(image: Image.Image, what: str) -> Image.Image:
    """Convert to RGB with EXIF orientation applied and transparency over white; reuses the image's
    memory."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
        return in_colors(image, WHITE)
    except (OSError, ValueError, SyntaxError) as error:
        raise RequestError(f"{what} cannot be decoded: {error}.") from None


def in_colors(image: Image.Image, background: tuple[int, int, int] | None) -> Image.Image:
    """Convert to RGB; `background` shows through transparency, None ignores it."""
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    if background is None or not has_alpha:
        return image if image.mode == "RGB" else image.convert("RGB")
    above = image if image.mode == "RGBA" else image.convert("RGBA")
    below = Image.new("RGB", above.size, background)
    below.paste(above, mask=above.getchannel("A"))
    return below


def loaded(image: Image.Image, what: str, background: tuple[int, int, int] | None) -> np.ndarray:
    """Pixels of an image, which is not modified."""
    try:
        turned = image if background is None else ImageOps.exif_transpose(image)
        return np.array(in_colors(turned, background))
    except (OSError, ValueError, SyntaxError) as error:
        raise RequestError(f"{what} cannot be decoded: {error}.") from None


def array_pixels(array: np.ndarray, what: str) -> np.ndarray:
    """An array [height, width], or with 1, 3 or 4 channels last or first. Raises RequestError."""
    if array.dtype != np.uint8:
        raise RequestError(f"{what} has dtype {array.dtype}; expected uint8, from 0 to 255.")
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise RequestError(
            f"{what} has shape {array.shape}; expected [height, width] or [height, width, 3]."
        )
    if array.shape[0] * array.shape[1] > MOST_PIXELS:
        raise RequestError(
            f"{what} has shape {array.shape}; expected at most {MOST_PIXELS} pixels."
        )
    colors = np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[..., :3]
    return np.ascontiguousarray(colors)
