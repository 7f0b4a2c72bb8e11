"""Builds a request's media items: from given images and videos to patches.

In: images, and untrusted files. Out: MediaItems with cache keys. Tokens and memory are counted from
file headers before decoding. Recent items are cached. Must not know prompts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jengine.config import VisionConfig
from jengine.errors import ContextOverflow, RequestError
from jengine.media.budget import FILE_BYTES, REQUEST_BYTES, Budget, check_request
from jengine.media.decoding_process import Decoders
from jengine.media.families import RULES, Settings
from jengine.media.moving_pictures import MOST_FRAMES
from jengine.media.patch_layout import MediaItem, PlaceholderLayout, item_of
from jengine.media.pictures import Picture, PictureFile, digest, measure, picture_of
from jengine.media.sources import MediaSources
from jengine.media.videos import Encode, frames_of, size_of_all, video_layout
from jengine.media_spans import MediaKind

KEPT_BYTES = 256 * 2**20
SAVED = 4  # prompt tokens that may merge with an item's: line breaks, marks around it


class Room(NamedTuple):
    """Limits of a request's media, from the engine."""

    context: int = 2**31 - 1  # tokens of prompt and answer
    answer: int = 1  # tokens reserved for the answer
    value_bytes: int | None = None  # limit on all patches if they are sent to another process


class Opened(NamedTuple):
    """An item of a prompt, not yet decoded."""

    pictures: list[Picture]  # frames of a video, or one picture
    seconds: tuple[float, ...] | None  # time of each frame; None: a picture
    settings: Settings
    what: str


class ItemMaker:
    """Makes items by one model's rules. Thread-safe."""

    def __init__(self, vision: VisionConfig, room: Room, encode: Encode | None) -> None:
        """`encode` tokenizes texts between a video's frames."""
        self.decoders = Decoders()  # for untrusted files
        self.budget = Budget()
        self._vision = vision
        self._room = room
        self._encode = encode
        self._rule = RULES[vision.family]
        self._kept: OrderedDict[str, MediaItem] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def most_images(self, settings: Settings) -> int:
        """Maximum number of images in the context, at the fewest tokens each."""
        side = self._vision.patch_size * self._vision.merger.side
        try:
            fewest = len(self._rule(side, side, self._vision, settings).tokens)
        except RequestError:  # too small a picture for this model
            fewest = 1
        return max(1, self._room.context // max(fewest, 1))

    def made(
        self,
        given: Mapping[MediaKind, list[Any]],
        settings: Mapping[MediaKind, Settings],
        others: int,
    ) -> dict[MediaKind, list[tuple[str, MediaItem]]]:
        """All items with their cache keys; `others`: tokens of the prompt, placeholders included.
        Nothing is decoded until all are known to fit."""
        opened = {
            kind: [opened_item(kind, one, settings[kind], n) for n, one in enumerate(own)]
            for kind, own in given.items()
        }
        every = [item for own in opened.values() for item in own]
        measure([one for item in every for one in item.pictures])
        check_pixels(every)
        layouts = list(map(self._layout, every))
        self._check_room(layouts, others)
        made = map(self._item, every, layouts)
        return {kind: [next(made) for _ in own] for kind, own in opened.items()}

    def _layout(self, item: Opened) -> PlaceholderLayout:
        if item.seconds is None:
            return self._rule(*item.pictures[0].size, self._vision, item.settings)
        size = size_of_all(item.pictures, item.what)
        return video_layout(size, item.seconds, self._vision, item.settings, self._encode)

    def _check_room(self, layouts: Sequence[PlaceholderLayout], others: int) -> None:
        """Raise if items exceed the context or the message size limit."""
        tokens = others + sum(len(one.tokens) - 1 for one in layouts)
        if tokens - SAVED * len(layouts) > self._room.context - self._room.answer:
            raise ContextOverflow(self._room.context, f"contains {tokens} input tokens")
        if self._room.value_bytes is not None:
            size = sum(one.value_bytes(self._vision) for one in layouts)
            check_request("the patches of the images", size, self._room.value_bytes)

    def _item(self, item: Opened, layout: PlaceholderLayout) -> tuple[str, MediaItem]:
        """An item's patches, with the digest of its content and settings as cache key."""
        how = [item.settings, item.seconds]
        key = digest(item.pictures, msgspec.json.encode(how, order="deterministic", enc_hook=str))
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return key, found
        cuts = self._cuts(item.pictures, layout)
        if len(cuts) < len(item.pictures):  # some files' sizes differ from their headers
            check_pixels([item])
            layout = self._layout(item)
            self._check_room([layout], 0)
            cuts = self._cuts(item.pictures, layout)
        if len(cuts) < len(item.pictures):
            raise RequestError(f"{item.what} cannot be decoded: its size does not stay the same.")
        made = item_of(layout, cuts, self._vision)
        self._keep(key, made)
        return key, made

    def _cuts(self, pictures: Iterable[Picture], layout: PlaceholderLayout) -> list[np.ndarray]:
        found = list[np.ndarray]()
        for one in pictures:
            with self.budget.room_for(one.cost):
                found += one.cut(layout.parts, layout.scaling.resample)
        return found

    def _keep(self, key: str, item: MediaItem) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = item
                self._kept_bytes += item.values.nbytes
            while self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].values.nbytes


class RequestFiles:
    """A request's files, within a total size limit."""

    def __init__(self, sources: MediaSources, decoders: Decoders) -> None:
        self._sources, self._decoders, self._size = sources, decoders, 0

    def opened(self, given: Any, what: str) -> Any:
        """Fetch a URL; images pass through, lists are fetched frame by frame."""
        if isinstance(given, list):
            if len(given) > MOST_FRAMES:
                raise RequestError(
                    f"{what} has {len(given)} frames; expected {MOST_FRAMES} at most."
                )
            return [self.opened(one, f"{what}, frame {n}") for n, one in enumerate(given)]
        if not isinstance(given, str):
            return given
        file = self._sources.content(given, what)
        self._size += len(file)
        check_request("the files of the images", self._size, FILE_BYTES)
        return PictureFile(file, what, self._decoders)


def opened_item(kind: MediaKind, given: Any, settings: Settings, number: int) -> Opened:
    """An image or video as users give it."""
    what = f"{kind} {number}"
    if kind == "image":
        return Opened([picture_of(given, what)], None, settings, what)
    frames = frames_of(given, settings.get("fps"), what)
    return Opened(frames.pictures, frames.seconds, settings, what)


def check_pixels(items: Iterable[Opened]) -> None:
    """Raise RequestError if a request's media have too many pixels."""
    size = sum(one.cost for item in items for one in item.pictures)
    check_request("the pixels of the images", size, REQUEST_BYTES)
