"""Per-family rules: how an image becomes patches and how many tokens it takes.

In: the image's size and preprocessor_config.json's settings. Out: a Layout. A new family is a
function and an entry in RULES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from jengine.config import VisionConfig
from jengine.errors import RequestError
from jengine.media.pan_and_scan import BEFORE, crops_of
from jengine.media.patch_layout import PicturePart, PlaceholderLayout, checked_size
from jengine.media.scaling import MOST_RATIO, Scaling, size_in_squares, size_in_steps

Settings = Mapping[str, Any]
MOST_ENTRY = 2**40  # limit of a size setting in pixels
MOST_SIDE = 4096  # longest side of a resized picture
MOST_TILES = 64
SOFT_TOKENS = (70, 140, 280, 560, 1120)  # token counts that Gemma 4 was trained with


def any_size(
    height: int, width: int, vision: VisionConfig, settings: Settings
) -> PlaceholderLayout:
    """Qwen2-VL and successors: native aspect ratio, rounded to whole tokens."""
    scaling, size = Scaling().changed(settings), vision.patch_size
    step, part = size * vision.merger.side, PicturePart()
    least, most = pixel_limits(settings)
    if scaling.do_resize:
        height, width = checked_size(*size_in_steps(height, width, step, least, most))
        part = PicturePart((height, width))
    if height % step or width % step:
        raise RequestError(
            f"an image has {width} x {height} pixels; without do_resize expected multiples of "
            f"{step}."
        )
    grid = (1, height // size, width // size)
    tokens = [vision.image_token] * (math.prod(grid) // vision.merger.patches)
    return PlaceholderLayout(scaling, (part,), grid, tokens, (0,))


def pixel_limits(
    settings: Settings, usual: tuple[int, int] = (56 * 56, 28 * 28 * 1280)
) -> tuple[int, int]:
    """Minimum and maximum pixels of a resized image."""
    size = settings.get("size") or {}
    if not isinstance(size, Mapping):
        raise RequestError(f"size={size!r}: expected shortest_edge and longest_edge.")
    least = settings.get("min_pixels") or size.get("shortest_edge") or usual[0]
    most = settings.get("max_pixels") or size.get("longest_edge") or usual[1]
    for name, value in (("min_pixels", least), ("max_pixels", most)):
        if type(value) is not int or not 0 < value < MOST_ENTRY:
            raise RequestError(f"{name}={value!r}: expected a number of pixels.")
    if least > most:
        raise RequestError(f"min_pixels={least} is more than max_pixels={most}.")
    return least, most


def one_size(
    height: int, width: int, vision: VisionConfig, settings: Settings
) -> PlaceholderLayout:
    """LLaVA: resize the shorter side to the tower's size, then center-crop."""
    scaling, wanted = Scaling().changed(settings), vision.image_size
    if settings.get("do_pad"):
        raise RequestError("do_pad=True: pictures are not padded to squares. Leave it out.")
    part = PicturePart()
    if scaling.do_resize:
        height, width = checked_size(*resized_shape(height, width, settings))
        part = PicturePart((height, width))
    if settings.get("do_center_crop", True):
        rows, columns = crop_of(settings)
        check_middle(height, width, rows, columns)
        part, height, width = msgspec.structs.replace(part, middle=(rows, columns)), rows, columns
    if (height, width) != (wanted, wanted):
        raise RequestError(
            f"an image has {width} x {height} pixels after preprocessing; this model takes "
            f"{wanted} x {wanted}."
        )
    side = wanted // vision.patch_size
    tokens = [vision.image_token] * (side**2 // vision.merger.patches)
    return PlaceholderLayout(scaling, (part,), (1, side, side), tokens, (0,))


def resized_shape(height: int, width: int, settings: Settings) -> tuple[int, int]:
    """(height, width) from `size`: both given, or from the shorter side."""
    size = settings.get("size", 224)
    size = {"shortest_edge": size} if type(size) is int else size
    if isinstance(size, Mapping) and size.get("height"):
        return sides("size", size)
    least = whole_side("size", size, "shortest_edge")
    longer = int(least * max(height, width) / min(height, width))
    if longer > MOST_RATIO * least:
        raise RequestError(
            f"an image has {width} x {height} pixels; expected a longer side of at most "
            f"{MOST_RATIO} times the shorter one."
        )
    return (least, longer) if height <= width else (longer, least)


def crop_of(settings: Settings) -> tuple[int, int]:
    """(height, width) of the center crop."""
    size = settings.get("crop_size", 224)
    return sides("crop_size", {"height": size, "width": size} if type(size) is int else size)


def sides(name: str, given: Any) -> tuple[int, int]:
    return whole_side(name, given, "height"), whole_side(name, given, "width")


def whole_side(name: str, given: Any, key: str) -> int:
    """Read a whole number of pixels under `key`. Raises RequestError."""
    value = given.get(key) if isinstance(given, Mapping) else None
    if type(value) is not int or not 0 < value <= MOST_SIDE:
        raise RequestError(f"{name}={given!r}: expected {key!r}, from 1 to {MOST_SIDE}.")
    return value


def check_middle(height: int, width: int, rows: int, columns: int) -> None:
    """Raise RequestError if the image is smaller than its center crop."""
    if height < rows or width < columns:
        raise RequestError(
            f"crop_size is {columns} x {rows}, and the resized image has {width} x {height} "
            "pixels; expected no less."
        )


def tiles(height: int, width: int, vision: VisionConfig, settings: Settings) -> PlaceholderLayout:
    """InternVL: tiles of the tower's size in the best-fitting grid, plus a thumbnail."""
    scaling, side = Scaling().changed(settings), vision.image_size
    if sides("size", settings.get("size", {"height": 384, "width": 384})) != (side, side):
        raise RequestError(f"size={settings.get('size')!r}: this model takes tiles of {side}.")
    if not scaling.do_resize:
        raise RequestError(f"do_resize=False: this model takes tiles of {side}.")
    least, most = tile_limits(settings)
    parts, frames = (PicturePart((side, side)),), 1
    if settings.get("crop_to_patches", True):
        rows, columns = tile_grid(height, width, side, least, most)
        if rows * columns > 1:
            large = PicturePart(checked_size(rows * side, columns * side), tile=side)
            parts, frames = (large, *parts), rows * columns + 1
    count = side // vision.patch_size
    inside = [vision.image_token] * (frames * count**2 // vision.merger.patches)
    around = [[] if one is None else [one] for one in (vision.start_token, vision.end_token)]
    tokens = [*around[0], *inside, *around[1]]
    return PlaceholderLayout(scaling, parts, (frames, count, count), tokens, (len(around[0]),))


def tile_limits(settings: Settings) -> tuple[int, int]:
    """Minimum and maximum number of tiles."""
    least, most = settings.get("min_patches", 1), settings.get("max_patches", 12)
    if type(least) is not int or type(most) is not int or not 1 <= least <= most <= MOST_TILES:
        raise RequestError(
            f"min_patches={least!r}, max_patches={most!r}: expected 1 to {MOST_TILES} tiles."
        )
    return least, most


def tile_grid(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Grid (rows, columns) with the aspect ratio nearest to the image's; of ties the larger, unless
    it has twice the image's pixels."""
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


def square(height: int, width: int, vision: VisionConfig, settings: Settings) -> PlaceholderLayout:
    """Gemma 3: the image resized to a square, with optional pan-and-scan crops."""
    scans = settings.get("do_pan_and_scan")
    if scans not in (None, True, False):
        raise RequestError(f"do_pan_and_scan={scans!r}: expected true or false.")
    crops = crops_of(height, width, settings) if scans else []
    usual = {"size": {"height": 224, "width": 224}, "image_mean": 0.5, "image_std": 0.5}
    given = {name: value for name, value in settings.items() if value is not None}
    whole = {**usual, "resample": 2, **given, "do_center_crop": False}
    layout = one_size(height, width, vision, whole)
    breaks = vision.line_breaks[1:2]
    before = [*breaks, *(one for one in (vision.start_token,) if one is not None)]
    after = [*(one for one in (vision.end_token,) if one is not None), *breaks]
    if crops:
        each = [
            one_size(bottom - top, right - left, vision, whole)
            for left, top, right, bottom in crops
        ]
        boxed = [msgspec.structs.replace(one.parts[0], box=box)
                 for one, box in zip(each, crops, strict=True)]  # fmt: skip
        return with_crops(layout, boxed, vision)
    return replace(layout, tokens=[*before, *layout.tokens, *after], firsts=(len(before),))


def with_crops(
    layout: PlaceholderLayout, crops: list[PicturePart], vision: VisionConfig
) -> PlaceholderLayout:
    """An image and its crops, with texts between them."""
    if not vision.crop_texts:
        raise RequestError(
            "do_pan_and_scan=True puts texts between the crops of an image: expected an engine "
            "with a tokenizer."
        )
    after_whole, between_crops = vision.crop_texts
    begin, end = ([] if one is None else [one] for one in (vision.start_token, vision.end_token))
    tokens, firsts = list[int](), list[int]()
    for number in range(len(crops) + 1):
        if number:
            tokens += after_whole if number == 1 else between_crops
        firsts.append(len(tokens) + len(begin))
        tokens += [*begin, *layout.tokens, *end]
    tokens += vision.line_breaks[1:2]
    parts, grid = (*layout.parts, *crops), (len(firsts), *layout.grid[1:])
    return replace(
        layout, parts=parts, grid=grid, tokens=tokens, firsts=tuple(firsts), before=BEFORE
    )


def soft_tokens(
    height: int, width: int, vision: VisionConfig, settings: Settings
) -> PlaceholderLayout:
    """Gemma 4: native aspect ratio, as large as a number of tokens allows."""
    plain = Scaling((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), do_normalize=False)
    scaling, most = plain.changed(settings).centred(), most_soft_tokens(settings, vision)
    own = {"patch_size": vision.patch_size, "pooling_kernel_size": vision.merger.side}
    for name, value in own.items():
        if settings.get(name) not in (None, value):
            raise RequestError(f"{name}={settings[name]!r}: this model takes {value}.")
    size, part, step = vision.patch_size, PicturePart(), vision.patch_size * vision.merger.side
    if scaling.do_resize:
        height, width = checked_size(*size_in_squares(height, width, step, most))
        part = PicturePart((height, width))
    if height % step or width % step or height * width > most * step**2:
        raise RequestError(
            f"an image has {width} x {height} pixels; without do_resize expected multiples of "
            f"{step}, and at most {most} squares of it."
        )
    grid = (1, height // size, width // size)
    if max(grid) > vision.axis_rows:
        raise RequestError(
            f"an image has {grid[2]} x {grid[1]} patches; this model knows {vision.axis_rows} "
            "positions per side. Lower max_soft_tokens."
        )
    inside = [vision.image_token] * (math.prod(grid) // vision.merger.patches)
    before, after = ([] if one is None else [one] for one in (vision.start_token, vision.end_token))
    return PlaceholderLayout(scaling, (part,), grid, [*before, *inside, *after], (len(before),))


def most_soft_tokens(settings: Settings, vision: VisionConfig) -> int:
    """Maximum tokens of an image. Raises RequestError."""
    assert vision.soft_tokens is not None, "read with a number"
    most = settings.get("max_soft_tokens")
    most = vision.soft_tokens if most is None else most
    if type(most) is not int or most not in SOFT_TOKENS:
        raise RequestError(f"max_soft_tokens={most!r}: expected one of {SOFT_TOKENS}.")
    if vision.sees_ahead and most > vision.soft_tokens:
        raise RequestError(
            f"max_soft_tokens={most}: the tokens of an image attend to each other, for which steps "
            f"are made with {vision.soft_tokens} of them. Start the engine with hf_overrides="
            f"{{'vision_soft_tokens_per_image': {most}}}."
        )
    return most


Rule = Callable[[int, int, VisionConfig, Settings], PlaceholderLayout]
RULES: dict[str, Rule] = {
    "qwen2_vl": any_size,
    "llava": one_size,
    "internvl": tiles,
    "gemma3": square,
    "gemma4": soft_tokens,
}
