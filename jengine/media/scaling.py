"""Resizes and normalises images as transformers' image processors do.

In: uint8 [height, width, 3] and settings. Out: float32 patches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from jengine.errors import RequestError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MOST_RATIO = 200  # longest aspect ratio
PATCHES_AT_ONCE = 1024
MOST_NUMBER = float(np.finfo(np.float32).max)
FILTERS = range(6)  # PIL's resampling filters


@dataclass(frozen=True)
class Scaling:
    """Normalisation and resizing settings of preprocessor_config.json."""

    image_mean: tuple[float, ...] = CLIP_MEAN
    image_std: tuple[float, ...] = CLIP_STD
    rescale_factor: float = 1 / 255
    resample: int = 3
    do_resize: bool = True
    do_rescale: bool = True
    do_normalize: bool = True

    def applied(self, patches: np.ndarray) -> np.ndarray:
        """Normalise patches of bytes, f32[patches, channels, pixels], by a lookup of the 256
        values, which alone need float64."""
        scaled = np.empty(patches.shape, np.float32)
        for color, values in enumerate(self.table()):
            for begin in range(0, len(patches), PATCHES_AT_ONCE):
                part = slice(begin, begin + PATCHES_AT_ONCE)
                scaled[part, color] = values[patches[part, color]]
        return scaled

    def table(self) -> np.ndarray:
        """Normalised value of each byte per channel, f32[3, 256]."""
        values = np.arange(256, dtype=np.float64)
        if self.do_rescale:
            values = values * self.rescale_factor
        scaled = np.repeat(values.astype(np.float32)[:, None], 3, axis=1)
        if self.do_normalize:
            mean, std = (np.array(x, np.float32) for x in (self.image_mean, self.image_std))
            scaled = (scaled - mean) / std
        return scaled.T

    def changed(self, given: Mapping[str, Any]) -> Scaling:
        """Copy with overrides from a mapping. Raises RequestError."""
        own = {field.name: given[field.name] for field in fields(self) if field.name in given}
        for name in ("image_mean", "image_std"):
            if name in own:
                own[name] = three_numbers(name, own[name])
        if "resample" in own and own["resample"] not in FILTERS:
            raise RequestError(f"resample={own['resample']!r}: expected a number from 0 to 5.")
        factor = own.get("rescale_factor", 1.0)
        if not is_float32(factor):
            raise RequestError(f"rescale_factor={factor!r:.80}: {EXPECTED.format('a number')}.")
        for name, value in own.items():
            if name.startswith("do_") and type(value) is not bool:
                raise RequestError(f"{name}={value!r}: expected true or false.")
        return replace(self, **own).checked()

    def centred(self) -> Scaling:
        """Copy whose normalised range [0, 1] is mapped to [-1, 1]."""
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        if self.do_normalize:
            mean, std = self.image_mean, self.image_std
        half = tuple(one / 2 for one in std)
        middle = tuple(one + other for one, other in zip(mean, half, strict=True))
        return replace(self, image_mean=middle, image_std=half, do_normalize=True).checked()

    def checked(self) -> Scaling:
        """Return self. Raises RequestError if normalised values are not finite."""
        with np.errstate(all="ignore"):
            table = self.table()
        if np.isfinite(table).all():
            return self
        raise RequestError(
            f"image_mean={self.image_mean!r}, image_std={self.image_std!r} and rescale_factor="
            f"{self.rescale_factor!r} take the numbers of pixels beyond those of float32."
        )


EXPECTED = "expected {}, finite and not beyond those of float32"


def is_float32(given: object) -> bool:
    """Whether it is a number within float32's range."""
    return isinstance(given, (int, float)) and type(given) is not bool and abs(given) <= MOST_NUMBER


def three_numbers(name: str, given: Any) -> tuple[float, ...]:
    """One number per channel; a single number applies to all. Raises RequestError."""
    values = [given] * 3 if isinstance(given, (int, float)) else given
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise RequestError(f"{name}={given!r}: expected three numbers.")
    if not all(map(is_float32, values)):
        raise RequestError(f"{name}={given!r:.80}: {EXPECTED.format('three numbers')}.")
    if name == "image_std" and not all(values):
        raise RequestError(f"{name}={given!r}: expected numbers other than 0.")
    return tuple(map(float, values))


def size_in_steps(
    height: int, width: int, step: int, least: int, most: int, frames: tuple[int, int] = (1, 1)
) -> tuple[int, int]:
    """Nearest size with sides that are multiples of `step` and `least` to `most` pixels, keeping
    the aspect ratio. `frames`: (given, padded) number of frames, over which pixels are counted."""
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


def size_in_squares(height: int, width: int, step: int, most: int) -> tuple[int, int]:
    """Largest size of at most `most` squares of `step` x `step` pixels, keeping the aspect ratio,
    with at least one of them per side."""
    factor = math.sqrt(most * step**2 / (height * width))
    rows, columns = (math.floor(factor * side / step) for side in (height, width))
    if not rows:
        rows, columns = 1, min(width // height, most)
    elif not columns:
        rows, columns = min(height // width, most), 1
    return rows * step, columns * step


def patches_of(pixels: np.ndarray, size: int, side: int) -> np.ndarray:
    """Split [height, width, channels] into patches [patches, channels, size * size], in blocks of
    side x side patches."""
    height, width, colors = pixels.shape
    rows, columns = height // size, width // size
    split = pixels.reshape(rows // side, side, size, columns // side, side, size, colors)
    return split.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, colors, size * size)
