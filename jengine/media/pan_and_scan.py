"""Gemma 3's pan and scan: an elongated image is shown whole, then in crops.

In: a size and settings. Out: boxes of crops. The texts around them are transformers'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jengine.errors import RequestError

BEFORE = "Here is the original image \n\n"
AFTER_WHOLE = "\n\n and here are some crops to help you see better \n\n"
BETWEEN_CROPS = "\n\n \n\n"
MOST_CROPS = 64


Box = tuple[int, int, int, int]  # left, top, right, bottom


def crops_of(height: int, width: int, settings: Mapping[str, Any]) -> list[Box]:
    """Crops along the longer side; none for images that are too square or small."""
    smallest, most, ratio = limits_of(settings)
    longer, shorter = max(height, width), min(height, width)
    if longer / shorter < ratio:
        return []
    count = min(longer // smallest, math.floor(longer / shorter + 0.5))
    count = min(most, max(2, count))
    length = math.ceil(longer / count)
    if min(length, shorter) < smallest:
        return []
    if length * (count - 1) >= longer:
        raise RequestError(
            f"an image has {width} x {height} pixels, too few for {count} crops of {length}: "
            "expected a larger pan_and_scan_min_crop_size."
        )
    ends = [(begin, min(begin + length, longer)) for begin in range(0, length * count, length)]
    if width >= height:
        return [(begin, 0, end, height) for begin, end in ends]
    return [(0, begin, width, end) for begin, end in ends]


def limits_of(settings: Mapping[str, Any]) -> tuple[int, int, float]:
    """Minimum crop side, maximum crops, and the aspect ratio that activates them."""
    usual = {"min_crop_size": 256, "max_num_crops": 4, "min_ratio_to_activate": 1.2}
    found = {}
    for name, value in usual.items():
        given = settings.get(f"pan_and_scan_{name}")
        found[name] = value if given is None else given
    smallest, most, ratio = found.values()
    if type(smallest) is not int or smallest < 1:
        raise RequestError(f"pan_and_scan_min_crop_size={smallest!r}: expected pixels, 1 or more.")
    if type(most) is not int or not 1 <= most <= MOST_CROPS:
        raise RequestError(f"pan_and_scan_max_num_crops={most!r}: expected 1 to {MOST_CROPS}.")
    if type(ratio) not in (int, float) or not 0 < ratio < math.inf:
        raise RequestError(
            f"pan_and_scan_min_ratio_to_activate={ratio!r}: expected a number above 0."
        )
    return smallest, most, ratio
