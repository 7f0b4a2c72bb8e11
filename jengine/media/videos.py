"""Videos as frames of one size, in patches of several frames.

In: an array of frames, a list of images, or an animated image, and frames per second. Out: images,
and a Layout. Frames are not subsampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jengine.config import VisionConfig
from jengine.errors import RequestError, UnsupportedFeature, nearest_name
from jengine.media.families import Settings, pixel_limits
from jengine.media.images import MOST_PIXELS
from jengine.media.moving_pictures import MOST_FRAMES, is_file, movie_of
from jengine.media.patch_layout import PicturePart, PlaceholderLayout, checked_size
from jengine.media.pictures import Picture, picture_of
from jengine.media.scaling import Scaling, size_in_steps

USUAL_FPS = 24.0  # default frame rate
# Known metadata of a video.
FACTS = ("fps", "frames_indices", "total_num_frames", "duration", "do_sample_frames", "height",
         "width", "video_backend")  # fmt: skip
Encode = Callable[[str], list[int]]  # a text's tokens


class Frames(NamedTuple):
    """Frames of a video and their times."""

    pictures: list[Picture]
    seconds: tuple[float, ...]


def are_videos(given: Any) -> bool:
    """Whether a list holds videos rather than one video's frames."""
    return isinstance(given, list) and bool(given) and all(is_video(one) for one in given)


def is_video(given: Any) -> bool:
    """Whether this is a video: (frames, metadata), a list of frames, or a 4-dimensional array."""
    return isinstance(given, (list, tuple)) or len(getattr(given, "shape", ())) == 4


def frames_of(given: Any, fps: Any, what: str) -> Frames:
    """Frames of one video; `fps` applies if its metadata has none. Raises RequestError."""
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
    frames = [picture_of(one, f"{what}, frame {number}") for number, one in enumerate(given)]
    told = seconds_of(len(frames), facts, fps, what)
    is_told = facts.get("fps") is not None or not seconds
    return Frames(frames, told if is_told else seconds)


def size_of_all(frames: Sequence[Picture], what: str) -> tuple[int, int]:
    """Common (height, width) of all frames. Raises RequestError."""
    if sum(math.prod(one.size) for one in frames) > MOST_PIXELS:
        raise RequestError(f"{what} has more than {MOST_PIXELS} pixels in all frames.")
    if len({one.size for one in frames}) > 1:
        raise RequestError(f"{what} has frames of several sizes; expected one size.")
    return frames[0].size


def seconds_of(count: int, facts: Mapping[str, Any], fps: Any, what: str) -> tuple[float, ...]:
    """Time of each frame. Raises RequestError, or UnsupportedFeature for frame sampling."""
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


def video_layout(
    size: tuple[int, int],
    frame_seconds: Sequence[float],
    vision: VisionConfig,
    settings: Settings,
    encode: Encode | None,
) -> PlaceholderLayout:
    scaling, step = Scaling().changed(settings), vision.patch_size * vision.merger.side
    (height, width), each, part = size, vision.frames, PicturePart()
    if scaling.do_resize:
        shape = (len(frame_seconds), height, width)
        height, width = checked_size(*resized_shape(shape, vision, settings))
        part = PicturePart((height, width))
    if height % step or width % step:
        raise RequestError(
            f"a video has {width} x {height} pixels; without do_resize expected multiples of "
            f"{step}."
        )
    seconds = [*frame_seconds, *[frame_seconds[-1]] * (-len(frame_seconds) % each)]
    grid = (len(seconds) // each, height // vision.patch_size, width // vision.patch_size)
    assert vision.video_token is not None, "checked before"
    inside = [vision.video_token] * (grid[1] * grid[2] // vision.merger.patches)
    if not vision.times_in_text:
        apart = (frame_seconds[-1] - frame_seconds[0]) / max(len(frame_seconds) - 1, 1)
        apart = apart or 1 / USUAL_FPS
        interval = apart * each * vision.steps_per_second if vision.steps_per_second else 1.0
        return PlaceholderLayout(scaling, (part,), grid, inside * grid[0], (0,), each, interval)
    middles = [(seconds[at] + seconds[at + each - 1]) / 2 for at in range(0, len(seconds), each)]
    tokens, firsts = list[int](), list[int]()
    for middle in middles:
        tokens += encode(f"<{middle:.1f} seconds>") if encode else []
        tokens += [one for one in (vision.start_token,) if one is not None]
        firsts.append(len(tokens))
        tokens += [*inside, *(one for one in (vision.end_token,) if one is not None)]
    return PlaceholderLayout(scaling, (part,), grid, tokens, tuple(firsts), each)


def resized_shape(
    shape: tuple[int, ...], vision: VisionConfig, settings: Settings
) -> tuple[int, int]:
    """(height, width) of resized frames. Pixel limits apply per frame or, for models with
    timestamps in text, to the whole video."""
    count, height, width = shape[:3]
    step = vision.patch_size * vision.merger.side
    least, most = pixel_limits(settings, usual_limits(vision))
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


def usual_limits(vision: VisionConfig) -> tuple[int, int]:
    """Default minimum and maximum pixels."""
    token = (vision.patch_size * vision.merger.side) ** 2
    return 128 * token, 768 * token
