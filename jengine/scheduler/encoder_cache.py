"""LRU cache of image embeddings on the device, by digest of the image.

In: requests to be admitted. Out: whether their images fit, the rows of the device's array that hold
each image's embeddings, and what the next plan has to encode. An entry is in use while a running
request still has to compute tokens of it; others are evicted when room is needed, least recently
used first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from jengine.media_spans import MediaSpan
from jengine.request import RUNNING, Request

Key = tuple[int, str]  # version of the weights, digest of the content


class CachedImage:
    """A cached image: its rows of embeddings, and the requests that may still read them."""

    __slots__ = ("readers", "rows")

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self.readers: list[tuple[Request, int]] = []  # a request, and where the image ends in it

    @property
    def is_needed(self) -> bool:
        """Whether a running request still has to compute tokens of this image."""
        self.readers = [(request, end) for request, end in self.readers if reads(request, end)]
        return bool(self.readers)


class EncoderCache:
    """LRU allocator of the device's embedding rows, keyed by image digest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.encoded = self.reused = 0  # images that were encoded, and that were there already
        self._free = list[int]()
        self._entries: dict[Key, CachedImage] = {}  # the least recently used first
        self._new: list[MediaSpan] = []
        self.reset()

    def have_room(self, request: Request, version: int) -> bool:
        """Whether all of the request's images are cached, or fit beside those in use."""
        wanted = {(version, span.key): span.length for span in request.wire.media}
        if not wanted:
            return True
        others = (
            len(entry.rows)
            for key, entry in self._entries.items()
            if key not in wanted and entry.is_needed
        )
        return sum(wanted.values()) + sum(others) <= self.capacity

    def take(self, request: Request, hit: int, version: int) -> list[MediaSpan]:
        """Reserve rows for the images of an admitted request, after `hit` cached tokens.

        Returns its spans without pixel values. Images that are not cached are encoded by the next
        plan.
        """
        held = {(version, span.key) for span in request.wire.media if span.end > hit}
        return [self._placed(request, span, version, held) for span in request.wire.media]

    def take_new(self) -> list[MediaSpan]:
        """Images to encode that were added since the last call."""
        new, self._new = self._new, []
        return new

    def reset(self) -> None:
        self._free = list(range(self.capacity - 1, -1, -1))
        self._entries.clear()
        self._new.clear()

    def _placed(self, request: Request, span: MediaSpan, version: int, held: set[Key]) -> MediaSpan:
        key = version, span.key
        if key not in held:
            return span.without_values
        entry = self._entries.pop(key, None)
        is_new = entry is None
        if entry is None:
            self._make_room(span.length, held)
            entry = CachedImage([self._free.pop() for _ in range(span.length)])
        entry.readers.append((request, span.end))
        self._entries[key] = entry
        placed = msgspec.structs.replace(span, rows=array("i", entry.rows).tobytes())
        self.encoded += is_new
        self.reused += not is_new
        if is_new:
            self._new.append(placed)
        return placed.without_values

    def _make_room(self, length: int, held: set[Key]) -> None:
        for key in list(self._unneeded(held)):
            if len(self._free) >= length:
                return
            self._free += self._entries.pop(key).rows
        assert len(self._free) >= length, "the gate keeps back requests without room"

    def _unneeded(self, held: set[Key]) -> Iterator[Key]:
        for key, entry in self._entries.items():
            if key not in held and not entry.is_needed:
                yield key


def reads(request: Request, end: int) -> bool:
    """Whether the request has to compute tokens before position `end`."""
    return request.status is RUNNING and request.num_computed < end
