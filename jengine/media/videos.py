"""Videos as frames: opened, resized alike, and cut into patches of several frames each.

In: an array of frames, a list of pictures, or an animated picture, and how many of them a second
has. Out: a MediaItem. Frames are taken as they are given: none is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jengine.config import VisionConfig
from jengine.errors import RequestError, UnsupportedFeature, nearest_name
from jengine.media.families import MediaItem, Settings, pixel_limits
from jengine.media.images import MOST_PIXELS, pixels_of
from jengine.media.moving_pictures import MOST_FRAMES, is_file, movie_of
from jengine.media.scaling import Scaling, patches_of, size_in_steps

USUAL_FPS = 24.0  # of frames of which nothing is said
# What may be said of a video beside its frames.
FACTS = ("fps", "frames_indices", "total_num_frames", "duration", "do_sample_frames", "height",
         "width", "video_backend")  # fmt: skip
Encode = Callable[[str], list[int]]  # a text's tokens


class Frames(NamedTuple):
    """The frames of a video, and when each is seen."""

    pixels: np.ndarray  # u8[frames, height, width, 3]
    seconds: tuple[float, ...]


def are_videos(given: Any) -> bool:
    """Whether a list holds videos, and not the frames of one."""
    return isinstance(given, list) and bool(given) and all(is_video(one) for one in given)


def is_video(given: Any) -> bool:
    """Frames with facts, a list of frames, or an array that has an axis of frames."""
    return isinstance(given, (list, tuple)) or len(getattr(given, "shape", ())) == 4


def frames_of(given: Any, fps: Any, what: str) -> Frames:
    """The frames of one video. `fps`: of videos that say nothing of it."""
    facts: Mapping[str, Any] = {}
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping | None):
        given, facts = given[0], given[1] or {}
    seconds: tuple[float, ...] = ()
    if is_file(given):
        given, seconds = movie_of(given, what)
    if not is_video(given):
        raise RequestError(
            f"{what} is a {type(given).__name__}; expected an array [frames, height, width, 3], a "
            "list of pictures, or an animated picture."
        )
    if not 0 < len(given) <= MOST_FRAMES:
        raise RequestError(f"{what} has {len(given)} frames; expected 1 to {MOST_FRAMES}.")
    frames = [pixels_of(one, f"{what}, frame {number}") for number, one in enumerate(given)]
    if sum(one.shape[0] * one.shape[1] for one in frames) > MOST_PIXELS:
        raise RequestError(f"{what} has more than {MOST_PIXELS} pixels in all frames.")
    shapes = {one.shape for one in frames}
    if len(shapes) > 1:
        raise RequestError(f"{what} has frames of several sizes; expected one size.")
    told = seconds_of(len(frames), facts, fps, what)
    is_told = facts.get("fps") is not None or not seconds
    return Frames(np.stack(frames), told if is_told else seconds)


def seconds_of(count: int, facts: Mapping[str, Any], fps: Any, what: str) -> tuple[float, ...]:
    """When each frame is seen."""
    for name in facts:
        if name not in FACTS:
            raise RequestError(
                f"{what}: its metadata have no key {name!r}; known: {', '.join(FACTS)}."
                f"{nearest_name(str(name), FACTS)}"
            )
    if facts.get("do_sample_frames"):
        raise UnsupportedFeature(
            f"{what}: do_sample_frames=True: frames are not left out here. Give those that the "
            "model is to see."
        )
    rate = facts.get("fps", fps)
    rate = USUAL_FPS if rate is None else rate
    if type(rate) not in (int, float) or not 0 < rate < math.inf:
        raise RequestError(f"{what}: fps={rate!r}: expected a number above 0.")
    places = facts.get("frames_indices")
    places = list(range(count)) if places is None else list(places)
    if len(places) != count or not all(isinstance(one, int | np.integer) for one in places):
        raise RequestError(f"{what}: frames_indices: expected a whole number for each frame.")
    return tuple(float(place) / rate for place in places)


def video_item(
    frames: Frames, vision: VisionConfig, settings: Settings, encode: Encode | None
) -> MediaItem:
    """The patches of a video, and what takes its placeholder's place."""
    scaling, size, side = Scaling().changed(settings), vision.patch_size, vision.merger.side
    pixels, each = frames.pixels, vision.frames
    if scaling.do_resize:
        height, width = resized_shape(pixels.shape, vision, settings)
        pixels = np.stack([scaling.resized(one, height, width) for one in pixels])
    if pixels.shape[1] % (size * side) or pixels.shape[2] % (size * side):
        raise RequestError(
            f"a video has {pixels.shape[2]} x {pixels.shape[1]} pixels; without do_resize expected "
            f"multiples of {size * side}."
        )
    missing = -len(pixels) % each  # the last frame stands still
    pixels = np.concatenate([pixels, np.repeat(pixels[-1:], missing, axis=0)])
    seconds = [*frames.seconds, *[frames.seconds[-1]] * missing]
    steps = len(pixels) // each
    # [frames, patches, numbers of a patch of one frame]
    cut = np.stack([patches_of(scaling.applied(one), size, side) for one in pixels])
    cut = cut.reshape(steps, each, cut.shape[1], vision.channels, -1).transpose(0, 2, 3, 1, 4)
    values = cut.reshape(steps * cut.shape[1], -1)
    grid = (steps, pixels.shape[1] // size, pixels.shape[2] // size)
    assert vision.video_token is not None, "checked before"
    inside = [vision.video_token] * (cut.shape[1] // vision.merger.patches)
    if not vision.times_in_text:
        apart = (frames.seconds[-1] - frames.seconds[0]) / max(len(frames.seconds) - 1, 1)
        apart = apart or 1 / USUAL_FPS
        interval = apart * each * vision.steps_per_second if vision.steps_per_second else 1.0
        return MediaItem(values, grid, inside * steps, (0,), interval)
    middles = [(seconds[at] + seconds[at + each - 1]) / 2 for at in range(0, len(seconds), each)]
    tokens, firsts = list[int](), list[int]()
    for middle in middles:
        tokens += encode(f"<{middle:.1f} seconds>") if encode else []
        tokens += [one for one in (vision.start_token,) if one is not None]
        firsts.append(len(tokens))
        tokens += [*inside, *(one for one in (vision.end_token,) if one is not None)]
    return MediaItem(values, grid, tokens, tuple(firsts))


def resized_shape(
    shape: tuple[int, ...], vision: VisionConfig, settings: Settings
) -> tuple[int, int]:
    """Height and width of resized frames. Limits are those of a frame, or, where frames are told
    apart by text, of all of them."""
    count, height, width = shape[:3]
    step = vision.patch_size * vision.merger.side
    least, most = pixel_limits(settings, (128 * step * step, 768 * step * step))
    if not vision.times_in_text:
        return size_in_steps(height, width, step, least, most)
    if count < vision.frames:
        raise RequestError(
            f"a video has {count} frames; this model takes at least {vision.frames}."
        )
    if min(height, width) < step:
        grow = max(step / height, step / width)
        height, width = int(height * grow), int(width * grow)
    whole = round(count / vision.frames) * vision.frames
    return size_in_steps(height, width, step, least, most, frames=(count, whole))
