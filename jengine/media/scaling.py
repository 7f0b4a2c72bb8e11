"""Resizes pictures and scales their numbers as the image processors of transformers do.

In: uint8 [height, width, 3] and settings. Out: float32 [3, height, width].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from PIL import Image

from jengine.errors import RequestError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MOST_RATIO = 200  # of the longer side of a picture to the shorter one
FILTERS = range(6)  # numbers of PIL's resampling filters


@dataclass(frozen=True)
class Scaling:
    """What a preprocessor_config.json says of the numbers of a picture."""

    image_mean: tuple[float, ...] = CLIP_MEAN
    image_std: tuple[float, ...] = CLIP_STD
    rescale_factor: float = 1 / 255
    resample: int = 3
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = True

    def applied(self, pixels: np.ndarray) -> np.ndarray:
        """float32 [3, height, width]."""
        image = np.moveaxis(pixels, -1, 0)
        if self.do_rescale:
            image = (image.astype(np.float64) * self.rescale_factor).astype(np.float32)
        else:
            image = image.astype(np.float32)
        if self.do_normalize:
            mean, std = (np.array(x, np.float32) for x in (self.image_mean, self.image_std))
            image = ((image.T - mean) / std).T
        return image

    def resized(self, pixels: np.ndarray, height: int, width: int) -> np.ndarray:
        """The picture in another size."""
        image = Image.fromarray(pixels).resize((width, height), resample=self.resample)
        return np.array(image)

    def changed(self, given: Mapping[str, Any]) -> Scaling:
        """The same with the values that a mapping has for it."""
        own = {field.name: given[field.name] for field in fields(self) if field.name in given}
        for name in ("image_mean", "image_std"):
            if name in own:
                own[name] = three_numbers(name, own[name])
        if "resample" in own and own["resample"] not in FILTERS:
            raise RequestError(f"resample={own['resample']!r}: expected a number from 0 to 5.")
        factor = own.get("rescale_factor", 1.0)
        if type(factor) not in (int, float) or not math.isfinite(factor):
            raise RequestError(f"rescale_factor={factor!r}: expected a finite number.")
        for name, value in own.items():
            if name.startswith("do_") and type(value) is not bool:
                raise RequestError(f"{name}={value!r}: expected true or false.")
        return replace(self, **own)


def three_numbers(name: str, given: Any) -> tuple[float, ...]:
    """One number for each color; a lone one stands for all."""
    values = [given] * 3 if isinstance(given, (int, float)) else given
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise RequestError(f"{name}={given!r}: expected three numbers.")
    if not all(type(one) in (int, float) and math.isfinite(one) for one in values):
        raise RequestError(f"{name}={given!r}: expected three finite numbers.")
    if name == "image_std" and not all(values):
        raise RequestError(f"{name}={given!r}: expected numbers other than 0.")
    return tuple(map(float, values))


def size_in_steps(
    height: int, width: int, step: int, least: int, most: int, frames: tuple[int, int] = (1, 1)
) -> tuple[int, int]:
    """The size nearest to this one whose sides are multiples of `step`, with `least` to `most`
    pixels and about the same shape. `frames`: over how many the pixels are counted, as they are
    given and as they are padded."""
    given, padded = frames
    if max(height, width) > MOST_RATIO * min(height, width):
        raise RequestError(
            f"an image has {width} x {height} pixels; expected a longer side of at most "
            f"{MOST_RATIO} times the shorter one."
        )
    rows, columns = round(height / step) * step, round(width / step) * step
    if padded * rows * columns > most:
        shrink = math.sqrt(given * height * width / most)
        rows = max(step, math.floor(height / shrink / step) * step)
        columns = max(step, math.floor(width / shrink / step) * step)
    elif padded * rows * columns < least:
        grow = math.sqrt(least / (given * height * width))
        rows = math.ceil(height * grow / step) * step
        columns = math.ceil(width * grow / step) * step
    return rows, columns


def patches_of(image: np.ndarray, size: int, side: int) -> np.ndarray:
    """float32 [patches, colors * size * size], square after square of side x side patches."""
    colors, height, width = image.shape
    rows, columns = height // size, width // size
    split = image.reshape(colors, rows // side, side, size, columns // side, side, size)
    return split.transpose(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, colors * size * size)
