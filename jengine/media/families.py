"""Each family's rule: how a picture becomes patches, and how many tokens stand for it.

In: pixels and the settings of preprocessor_config.json. Out: a MediaItem. A new family is a
function and a line in RULES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jengine.config import VisionConfig
from jengine.errors import RequestError
from jengine.media.pan_and_scan import BEFORE, crops_of
from jengine.media.scaling import MOST_RATIO, Scaling, patches_of, size_in_steps

Settings = Mapping[str, Any]
MOST_ENTRY = 2**40  # of a size in pixels
MOST_SIDE = 4096  # of a resized picture
MOST_TILES = 64


@dataclass(frozen=True)
class MediaItem:
    """One image or video, ready for the encoder."""

    values: np.ndarray  # float32 [patches, numbers of a patch]
    grid: tuple[int, int, int]  # frames, rows and columns of patches
    tokens: list[int]  # that take the place of the one placeholder
    # Places of the first embedding among them: one, or one for each frame.
    firsts: tuple[int, ...]
    interval: float = 1.0
    before: str = ""  # a text that joins the one before the placeholder


def any_size(pixels: np.ndarray, vision: VisionConfig, settings: Settings) -> MediaItem:
    """Qwen2-VL and its successors: the picture's own size, in whole tokens."""
    scaling, size, side = Scaling().changed(settings), vision.patch_size, vision.merger.side
    least, most = pixel_limits(settings)
    if scaling.do_resize:
        rows, columns = pixels.shape[:2]
        height, width = size_in_steps(rows, columns, size * side, least, most)
        pixels = scaling.resized(pixels, height, width)
    rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
    if pixels.shape[0] % (size * side) or pixels.shape[1] % (size * side):
        raise RequestError(
            f"an image has {pixels.shape[1]} x {pixels.shape[0]} pixels; without do_resize "
            f"expected multiples of {size * side}."
        )
    values = patches_of(scaling.applied(pixels), size, side)
    tokens = [vision.image_token] * (len(values) // vision.merger.patches)
    return MediaItem(values, (1, rows, columns), tokens, (0,))


def pixel_limits(
    settings: Settings, usual: tuple[int, int] = (56 * 56, 28 * 28 * 1280)
) -> tuple[int, int]:
    """The fewest and the most pixels of a resized picture."""
    size = settings.get("size") or {}
    if not isinstance(size, Mapping):
        raise RequestError(f"size={size!r}: expected shortest_edge and longest_edge.")
    least = settings.get("min_pixels") or size.get("shortest_edge") or usual[0]
    most = settings.get("max_pixels") or size.get("longest_edge") or usual[1]
    for name, value in (("min_pixels", least), ("max_pixels", most)):
        if type(value) is not int or not 0 < value < MOST_ENTRY:
            raise RequestError(f"{name}={value!r}: expected a number of pixels.")
    return least, most


def one_size(pixels: np.ndarray, vision: VisionConfig, settings: Settings) -> MediaItem:
    """LLaVA: the shorter side becomes the tower's size, and the middle of the picture is taken."""
    scaling, wanted = Scaling().changed(settings), vision.image_size
    if settings.get("do_pad"):
        raise RequestError("do_pad=True: pictures are not padded to squares. Leave it out.")
    if scaling.do_resize:
        pixels = scaling.resized(pixels, *resized_shape(pixels, settings))
    if settings.get("do_center_crop", True):
        pixels = middle(pixels, *crop_of(settings))
    if pixels.shape[:2] != (wanted, wanted):
        raise RequestError(
            f"an image has {pixels.shape[1]} x {pixels.shape[0]} pixels after preprocessing; this "
            f"model takes {wanted} x {wanted}."
        )
    values = patches_of(scaling.applied(pixels), vision.patch_size, vision.merger.side)
    side = wanted // vision.patch_size
    tokens = [vision.image_token] * (len(values) // vision.merger.patches)
    return MediaItem(values, (1, side, side), tokens, (0,))


def resized_shape(pixels: np.ndarray, settings: Settings) -> tuple[int, int]:
    """Height and width, as `size` says: both, or that of the shorter side."""
    size = settings.get("size", 224)
    size = {"shortest_edge": size} if type(size) is int else size
    if isinstance(size, Mapping) and size.get("height"):
        return sides("size", size)
    least = whole_side("size", size, "shortest_edge")
    height, width = pixels.shape[:2]
    longer = int(least * max(height, width) / min(height, width))
    if longer > MOST_RATIO * least:
        raise RequestError(
            f"an image has {width} x {height} pixels; expected a longer side of at most "
            f"{MOST_RATIO} times the shorter one."
        )
    return (least, longer) if height <= width else (longer, least)


def crop_of(settings: Settings) -> tuple[int, int]:
    """Height and width of the middle that is taken."""
    size = settings.get("crop_size", 224)
    return sides("crop_size", {"height": size, "width": size} if type(size) is int else size)


def sides(name: str, given: Any) -> tuple[int, int]:
    """Height and width."""
    return whole_side(name, given, "height"), whole_side(name, given, "width")


def whole_side(name: str, given: Any, key: str) -> int:
    """A number of pixels under a key."""
    value = given.get(key) if isinstance(given, Mapping) else None
    if type(value) is not int or not 0 < value <= MOST_SIDE:
        raise RequestError(f"{name}={given!r}: expected {key!r}, from 1 to {MOST_SIDE}.")
    return value


def middle(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of a picture that is at least so large."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    if top < 0 or left < 0:
        raise RequestError(
            f"crop_size is {width} x {height}, and the resized image has {pixels.shape[1]} x "
            f"{pixels.shape[0]} pixels; expected no less."
        )
    return pixels[top : top + height, left : left + width]


def tiles(pixels: np.ndarray, vision: VisionConfig, settings: Settings) -> MediaItem:
    """InternVL: tiles of the tower's size, as many as fit the picture's shape best, and then the
    whole picture as one more."""
    scaling, side = Scaling().changed(settings), vision.image_size
    if sides("size", settings.get("size", {"height": 384, "width": 384})) != (side, side):
        raise RequestError(f"size={settings.get('size')!r}: this model takes tiles of {side}.")
    if not scaling.do_resize:
        raise RequestError(f"do_resize=False: this model takes tiles of {side}.")
    parts = [scaling.resized(pixels, side, side)]
    least, most = settings.get("min_patches", 1), settings.get("max_patches", 12)
    if type(least) is not int or type(most) is not int or not 1 <= least <= most <= MOST_TILES:
        raise RequestError(
            f"min_patches={least!r}, max_patches={most!r}: expected 1 to {MOST_TILES} tiles."
        )
    if settings.get("crop_to_patches", True):
        rows, columns = tile_grid(pixels.shape[0], pixels.shape[1], side, least, most)
        if rows * columns > 1:
            large = scaling.resized(pixels, rows * side, columns * side)
            cut = large.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
            parts = [*cut.reshape(-1, side, side, 3), *parts]
    values = [
        patches_of(scaling.applied(part), vision.patch_size, vision.merger.side) for part in parts
    ]
    count = side // vision.patch_size
    inside = [vision.image_token] * (len(parts) * count**2 // vision.merger.patches)
    around = [[] if one is None else [one] for one in (vision.start_token, vision.end_token)]
    tokens = [*around[0], *inside, *around[1]]
    grid = (len(parts), count, count)
    return MediaItem(np.concatenate(values), grid, tokens, (len(around[0]),))


def tile_grid(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Rows and columns of tiles whose shape is nearest to the picture's. Of equally near ones the
    larger, unless it has twice the picture's pixels."""
    grids = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if least <= columns * rows <= most
    ]
    best, nearest = (1, 1), math.inf
    for columns, rows in sorted(grids, key=math.prod):
        distance = abs(width / height - columns / rows)
        is_large = width * height > 0.5 * side * side * columns * rows
        if distance < nearest or (distance == nearest and is_large):
            best, nearest = (rows, columns), distance
    return best


def square(pixels: np.ndarray, vision: VisionConfig, settings: Settings) -> MediaItem:
    """Gemma 3: the whole picture as a square, between line breaks and tokens of its own."""
    scans = settings.get("do_pan_and_scan")
    if scans not in (None, True, False):
        raise RequestError(f"do_pan_and_scan={scans!r}: expected true or false.")
    crops = crops_of(pixels, settings) if scans else []
    usual = {"size": {"height": 224, "width": 224}, "image_mean": 0.5, "image_std": 0.5}
    given = {name: value for name, value in settings.items() if value is not None}
    whole = {**usual, "resample": 2, **given, "do_center_crop": False}
    item = one_size(pixels, vision, whole)
    breaks = vision.line_breaks[1:2]
    before = [*breaks, *(one for one in (vision.start_token,) if one is not None)]
    after = [*(one for one in (vision.end_token,) if one is not None), *breaks]
    if crops:
        return with_crops(item, [one_size(crop, vision, whole) for crop in crops], vision)
    return replace(item, tokens=[*before, *item.tokens, *after], firsts=(len(before),))


def with_crops(item: MediaItem, crops: list[MediaItem], vision: VisionConfig) -> MediaItem:
    """A picture and its crops, with texts between them."""
    if not vision.crop_texts:
        raise RequestError(
            "do_pan_and_scan=True puts texts between the crops of an image: expected an engine "
            "with a tokenizer."
        )
    after_whole, between_crops = vision.crop_texts
    begin, end = ([] if one is None else [one] for one in (vision.start_token, vision.end_token))
    tokens, firsts = list[int](), list[int]()
    for number, one in enumerate([item, *crops]):
        if number:
            tokens += after_whole if number == 1 else between_crops
        firsts.append(len(tokens) + len(begin))
        tokens += [*begin, *one.tokens, *end]
    tokens += vision.line_breaks[1:2]
    values = np.concatenate([item.values, *(crop.values for crop in crops)])
    grid = (len(firsts), *item.grid[1:])
    return MediaItem(values, grid, tokens, tuple(firsts), before=BEFORE)


Rule = Callable[[np.ndarray, VisionConfig, Settings], MediaItem]
RULES: dict[str, Rule] = {
    "qwen2_vl": any_size,
    "llava": one_size,
    "internvl": tiles,
    "gemma3": square,
}
