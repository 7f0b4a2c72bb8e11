"""What a request may ask of the preprocessing of its media: no more than the engine's settings.

In: the settings of an engine, and those that a request changes. Out: a RequestError, if the request
raises a limit. Every family says which of its settings are limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jengine.config import VisionConfig
from jengine.errors import RequestError
from jengine.media.families import Settings, pixel_limits, tile_limits
from jengine.media.pan_and_scan import limits_of
from jengine.media.videos import usual_limits

Most = Callable[[Settings, VisionConfig], dict[str, int]]


def area(settings: Settings, name: str, vision: VisionConfig) -> int:
    """The pixels of a size of both sides, or of a square of the shorter one; those that the tower
    takes at least."""
    size, least = settings.get(name, 224), vision.image_size**2
    if not isinstance(size, Mapping):
        return max(size**2, least) if type(size) is int else least
    whole = {key: one for key, one in size.items() if type(one) is int}
    both = whole.get("height", 0) * whole.get("width", 0)
    return max(both, whole.get("shortest_edge", 0) ** 2, least)


def most_pixels(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Of families that take a picture's own size."""
    return {"max_pixels": pixel_limits(own)[1]}


def most_of_videos(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Of a frame, or of all frames."""
    return {"max_pixels": pixel_limits(own, usual_limits(vision))[1]}


def most_of_one_size(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Of families whose towers take one size."""
    return {name: area(own, name, vision) for name in ("size", "crop_size")}


def most_tiles(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Of families that cut a picture into tiles."""
    return {"max_patches": tile_limits(own)[1]}


def most_crops(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Of a picture that is shown again in crops."""
    return {"size": area(own, "size", vision), "pan_and_scan_max_num_crops": limits_of(own)[1]}


MOST: dict[tuple[str, str], Most] = {
    ("qwen2_vl", "image"): most_pixels,
    ("qwen2_vl", "video"): most_of_videos,
    ("llava", "image"): most_of_one_size,
    ("internvl", "image"): most_tiles,
    ("gemma3", "image"): most_crops,
}


def check_lowered(own: Settings, asked: Settings, kind: str, vision: VisionConfig) -> None:
    """Refuse a request's settings that raise a limit of an engine's own."""
    most = MOST[vision.family, kind]
    allowed, wanted = most(own, vision), most({**own, **asked}, vision)
    for name, value in wanted.items():
        if value > allowed[name]:
            raise RequestError(
                f"mm_processor_kwargs raises {name} to {value}; a request may only lower what the "
                f"engine has, {allowed[name]}. Raise it with the engine's mm_processor_kwargs."
            )
