"""Expands media placeholders in prompts to as many tokens as there are embeddings.

In: token ids and `multi_modal_data`. Out: longer token ids, and spans of embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from jengine.config import VisionConfig
from jengine.errors import RequestError, UnsupportedFeature, nearest_name
from jengine.media.families import Settings, most_soft_tokens, pixel_limits, tile_limits
from jengine.media.items import ItemMaker, RequestFiles, Room
from jengine.media.options import KINDS, KINDS_OF_OTHERS, checked_options, kinds_of
from jengine.media.pan_and_scan import limits_of
from jengine.media.patch_layout import MediaItem
from jengine.media.sources import MediaSources
from jengine.media.videos import Encode, are_videos, usual_limits
from jengine.media_spans import MediaKind, MediaSpan

Join = Callable[[list[int], str], list[int]]  # appends a text's tokens

USUAL_LIMIT = 999  # images per prompt, if the context has room
NOWHERE = MediaSources()
ANY_ROOM = Room()


class MediaProcessor:
    """Puts images and videos into prompts by one model's rules. Thread-safe."""

    def __init__(
        self,
        vision: VisionConfig,
        settings: Mapping[str, Any],
        limits: Mapping[str, int] | None = None,
        sources: MediaSources = NOWHERE,
        *,
        of_videos: Mapping[str, Any] | None = None,
        encode: Encode | None = None,
        join: Join | None = None,
        room: Room = ANY_ROOM,
    ) -> None:
        """`of_videos`: settings that override `settings` for videos. `encode` tokenizes texts
        between frames. `join` appends a text to a prompt, for texts before an image."""
        self.vision = vision
        self.items = ItemMaker(vision, room, encode)
        self._of_videos = dict(of_videos or {})
        self._join = join
        self._sources = sources
        self._settings = settings
        self._limits = dict(limits or {})

    def expanded(
        self, ids: list[int], data: Any, options: Mapping[str, Any] | None = None
    ) -> tuple[list[int], list[MediaSpan]]:
        """Expand placeholders. Returns the new ids and spans. Raises RequestError."""
        given = self._given(data)
        chosen = self.check_options(options)
        usual: dict[MediaKind, Settings] = {
            "image": self._settings, "video": {**self._settings, **self._of_videos},
        }  # fmt: skip
        for kind in [kind for kind, items in given.items() if items]:
            check_lowered(usual[kind], chosen, kind, self.vision)
        settings: dict[MediaKind, Settings] = {
            kind: {**own, **chosen} for kind, own in usual.items()
        }
        marks: dict[MediaKind, int | None] = {
            "image": self.vision.placeholder,
            "video": self.vision.video_token,
        }
        for kind, items in given.items():
            check_places(kind, sum(one == marks[kind] for one in ids), marks[kind], len(items))
        made = self.items.made(given, settings, len(ids))
        left = {kind: iter(items) for kind, items in made.items()}
        kinds = {marks[kind]: kind for kind in given}
        longer, spans, end = list[int](), list[MediaSpan](), 0
        for place, token in enumerate(ids):
            if token not in kinds:
                continue
            kind = kinds[token]
            key, item = next(left[kind])
            before, after = self._outside(kind, ids, place)
            self._append(longer, ids[end:before])
            if item.layout.before:
                assert self._join is not None, "its other texts were tokenized too"
                longer = self._join(longer, item.layout.before)
            begin = self._append(longer, item.layout.tokens)
            spans += spans_of(item, kind, key, begin, self.vision)
            end = after
        self._append(longer, ids[end:])
        return longer, spans

    def _outside(self, kind: str, ids: list[int], place: int) -> tuple[int, int]:
        """Range of tokens that an item replaces; separately marked frames include the tokens around
        the placeholder."""
        vision = self.vision
        around = [vision.start_token, vision.end_token]
        if kind == "video" and vision.times_in_text and ids[place - 1 : place + 2 : 2] == around:
            return place - 1, place + 2
        return place, place + 1

    def _append(self, ids: list[int], more: list[int]) -> int:
        """Append tokens, merging adjacent line breaks into one token; returns where they begin."""
        breaks = self.vision.line_breaks
        if ids and more and ids[-1] in breaks and more[0] in breaks:
            count = breaks.index(ids[-1]) + breaks.index(more[0]) + 2
            if count <= len(breaks):
                ids[-1] = breaks[count - 1]
                ids += more[1:]
                return len(ids) - len(more)
        ids += more
        return len(ids) - len(more)

    def opened(self, parts: Mapping[str, Sequence[tuple[Any, str]]]) -> dict[str, list[Any]]:
        """Fetch media of chat messages by kind. `parts`: (given, where) of each item, `where` for
        errors."""
        for kind, several in parts.items():
            self.check_count(len(several), kind)
        files = RequestFiles(self._sources, self.items.decoders)
        return {
            kind: [files.opened(one, where) for one, where in several]
            for kind, several in parts.items()
        }

    def check_count(self, count: int, kind: str = "image") -> None:
        """Raise RequestError for too many items, before any is opened."""
        most = self._limits.get(kind, self._usual_limit)
        if count > most:
            raise RequestError(f"At most {most} {kind}(s) may be provided in one prompt.")

    @cached_property
    def _usual_limit(self) -> int:
        return min(USUAL_LIMIT, self.items.most_images(self._settings))

    def check_options(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        """Validate a request's `mm_processor_kwargs`."""
        return checked_options(options, self.vision.family)

    def _given(self, data: Any) -> dict[MediaKind, list[Any]]:
        """Items by kind. Raises RequestError or UnsupportedFeature for kinds the model does not
        take."""
        if not isinstance(data, Mapping):
            raise RequestError(
                f"multi_modal_data is a {type(data).__name__}; expected {{'image': ...}}."
            )
        for kind in data:
            if kind in KINDS_OF_OTHERS and data[kind] is not None:
                raise RequestError(
                    f"At most 0 {kind}(s) may be provided in one prompt: this model takes "
                    f"{' and '.join(f'{one}s' for one in kinds_of(self.vision))}."
                )
            if kind not in (*KINDS, *KINDS_OF_OTHERS):
                raise RequestError(
                    f"multi_modal_data has no key {kind!r}; known: {', '.join(KINDS)}."
                    f"{nearest_name(str(kind), KINDS)}"
                )
        images, videos = data.get("image"), data.get("video")
        found: dict[MediaKind, list[Any]] = {
            "image": several(images, isinstance(images, (list, tuple)))
        }
        takes_videos = "video" in kinds_of(self.vision)
        if videos is not None and not takes_videos:
            raise UnsupportedFeature(
                f"multi_modal_data['video']: videos for models of the kind {self.vision.family!r} "
                "are not built. Give frames as images."
            )
        if takes_videos:
            found["video"] = several(videos, are_videos(videos))
        for kind, items in found.items():
            self.check_count(len(items), kind)
        return found


def several(given: Any, are_several: bool) -> list[Any]:
    """Items of one kind as a list."""
    if given is None:
        return []
    return list(given) if are_several else [given]


def check_places(kind: str, places: int, token: int | None, given: int) -> None:
    """Raise RequestError unless placeholders and items match in number."""
    if places != given:
        raise RequestError(
            f"Failed to apply prompt replacement for mm_items[{kind!r}][{min(places, given)}]: the "
            f"prompt has {places} placeholders (token {token}), and {given} {kind}s were given; "
            "expected one for each."
        )


def spans_of(
    item: MediaItem, kind: MediaKind, key: str, begin: int, vision: VisionConfig
) -> list[MediaSpan]:
    """Spans of an item's embeddings in a prompt that has its tokens from `begin`."""
    side, layout = vision.merger.side, item.layout
    parts = len(layout.firsts)
    grid = (layout.grid[0] // parts, *layout.grid[1:])
    steps = (grid[0], grid[1] // side, grid[2] // side)
    values = np.split(np.ascontiguousarray(item.values, np.float32), parts)
    return [
        MediaSpan(
            offset=begin + first,
            length=steps[0] * steps[1] * steps[2],
            key=key if parts == 1 else f"{key}-{number}",
            kind=kind,
            grid=grid,
            steps=steps,
            interval=layout.interval,
            values=values[number].tobytes(),
            is_whole=vision.sees_ahead,
        )
        for number, first in enumerate(layout.firsts)
    ]


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
