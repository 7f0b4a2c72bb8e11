"""Keeps a request's media preprocessing settings within the engine's.

In: the engine's settings, and a request's overrides. Out: a RequestError if a limit is raised. Each
family lists its limiting settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jengine.config import VisionConfig
from jengine.errors import RequestError
from jengine.media.families import Settings, most_soft_tokens, pixel_limits, tile_limits
from jengine.media.pan_and_scan import limits_of
from jengine.media.videos import usual_limits

Most = Callable[[Settings, VisionConfig], dict[str, int]]


def area(settings: Settings, name: str, vision: VisionConfig) -> int:
    """Pixels of a size setting, at least what the tower takes."""
    size, least = settings.get(name, 224), vision.image_size**2
    if not isinstance(size, Mapping):
        return max(size**2, least) if type(size) is int else least
    whole = {key: one for key, one in size.items() if type(one) is int}
    both = whole.get("height", 0) * whole.get("width", 0)
    return max(both, whole.get("shortest_edge", 0) ** 2, least)


def most_pixels(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Limits for families with native image sizes."""
    return {"max_pixels": pixel_limits(own)[1]}


def most_of_videos(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Limits of videos: per frame or over all frames."""
    return {"max_pixels": pixel_limits(own, usual_limits(vision))[1]}


def most_of_one_size(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Limits for families with one image size."""
    return {name: area(own, name, vision) for name in ("size", "crop_size")}


def most_tiles(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Limits for families with tiles."""
    return {"max_patches": tile_limits(own)[1]}


def most_crops(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Limits for pan and scan."""
    return {"size": area(own, "size", vision), "pan_and_scan_max_num_crops": limits_of(own)[1]}


def most_tokens(own: Settings, vision: VisionConfig) -> dict[str, int]:
    """Limits for families whose images are as large as a number of tokens allows."""
    return {"max_soft_tokens": most_soft_tokens(own, vision)}


MOST: dict[tuple[str, str], Most] = {
    ("qwen2_vl", "image"): most_pixels,
    ("qwen2_vl", "video"): most_of_videos,
    ("llava", "image"): most_of_one_size,
    ("internvl", "image"): most_tiles,
    ("gemma3", "image"): most_crops,
    ("gemma4", "image"): most_tokens,
}


def check_lowered(own: Settings, asked: Settings, kind: str, vision: VisionConfig) -> None:
    """Raise RequestError if a request's settings raise one of the engine's limits."""
    most = MOST[vision.family, kind]
    allowed, wanted = most(own, vision), most({**own, **asked}, vision)
    for name, value in wanted.items():
        if value > allowed[name]:
            raise RequestError(
                f"mm_processor_kwargs raises {name} to {value}; a request may only lower what the "
                f"engine has, {allowed[name]}. Raise it with the engine's mm_processor_kwargs."
            )
