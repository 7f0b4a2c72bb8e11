"""Layout of an image or video, derived from its size alone, and its patches once cut.

In: pixels of the parts that a layout names. Out: a MediaItem. Must not know families and files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
from PIL import Image

from jengine.config import VisionConfig
from jengine.errors import RequestError
from jengine.media.images import MOST_PIXELS
from jengine.media.scaling import Scaling, patches_of


class PicturePart(msgspec.Struct, frozen=True, array_like=True):
    """A resized, cropped part of an image; fields that are None leave it as is."""

    size: tuple[int, int] | None = None  # target (rows, columns)
    box: tuple[int, int, int, int] | None = None  # crop before resizing: left, top, right, bottom
    middle: tuple[int, int] | None = None  # center crop after resizing: (rows, columns)
    tile: int = 0  # side of square tiles; 0: no tiles


@dataclass(frozen=True)
class PlaceholderLayout:
    """Tokens that replace a placeholder, and the image parts that its patches are cut from."""

    scaling: Scaling
    parts: tuple[PicturePart, ...]
    grid: tuple[int, int, int]  # frames, rows and columns of patches
    tokens: list[int]  # replacing the placeholder
    # Index in `tokens` of the first embedding of each span: one, or one per frame.
    firsts: tuple[int, ...]
    frames: int = 1  # frames per patch
    interval: float = 1.0
    before: str = ""  # text appended to the one before the placeholder

    def value_bytes(self, vision: VisionConfig) -> int:
        """Bytes of the patches."""
        one = vision.channels * vision.patch_size**2 * self.frames
        return math.prod(self.grid) * one * np.float32().itemsize


@dataclass(frozen=True)
class MediaItem:
    """An image or video ready for the encoder."""

    values: np.ndarray  # f32[patches, patch size]
    layout: PlaceholderLayout


def checked_size(rows: int, columns: int) -> tuple[int, int]:
    """Size of a resized image. Raises RequestError if too large."""
    if rows * columns > MOST_PIXELS:
        raise RequestError(
            f"an image would be resized to {columns} x {rows} pixels; expected at most "
            f"{MOST_PIXELS} in all."
        )
    return rows, columns


def cut(image: Image.Image, parts: Sequence[PicturePart], resample: int) -> list[np.ndarray]:
    """Cut parts from an image, u8[rows, columns, 3] each."""
    return [cut_part(image, part, resample) for part in parts]


def cut_part(image: Image.Image, part: PicturePart, resample: int) -> np.ndarray:
    """Cut one part, u8[rows, columns, 3]."""
    if part.box is not None:
        image = image.crop(part.box)
    if part.size is not None:
        image = image.resize(part.size[::-1], resample=Image.Resampling(resample))
    if part.middle is not None:
        rows, columns = part.middle
        top, left = (image.height - rows) // 2, (image.width - columns) // 2
        image = image.crop((left, top, left + columns, top + rows))
    return np.array(image)


def item_of(
    layout: PlaceholderLayout, cuts: Sequence[np.ndarray], vision: VisionConfig
) -> MediaItem:
    """Patches of all parts (or of one part of all frames), f32[patches, channels * frames *
    pixels]."""
    squares = [squares_of(one, layout.parts[at % len(layout.parts)].tile)
               for at, one in enumerate(cuts)]  # fmt: skip
    side = vision.merger.side
    each = [patches_of(one, vision.patch_size, side) for one in chain.from_iterable(squares)]
    each += each[-1:] * (-len(each) % layout.frames)  # repeat the last frame
    patches, colors, numbers = each[0].shape
    steps = np.stack(each).reshape(-1, layout.frames, patches, colors, numbers)
    ordered = steps.transpose(0, 2, 3, 1, 4).reshape(-1, colors, layout.frames * numbers)
    return MediaItem(layout.scaling.applied(ordered).reshape(len(ordered), -1), layout)


def squares_of(pixels: np.ndarray, side: int) -> Sequence[np.ndarray]:
    """Square tiles in row order; the whole image if `side` is 0."""
    if not side:
        return [pixels]
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    cells = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    return list(cells.reshape(-1, side, side, 3))
