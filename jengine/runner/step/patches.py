"""Packs images into one run of the vision encoder: patches, positions, and rows of embeddings.

Pure numpy. The patches that are merged to one token are adjacent; a class vector takes the place of
one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jengine.config import VisionConfig
from jengine.media_spans import MediaSpan
from jengine.models.vision_tower import PatchInput


class PackedPatches(NamedTuple):
    """Arrays of `models.vision_tower.PatchInput`, and each embedding's row of the encoder's
    array."""

    values: Any  # f32[patches, values per patch]
    places: Any  # i32[2, patches]
    table: Any  # f32[2, patches]
    segments: Any  # i32[2, patches]
    rows: Any  # i32[tokens] out of range for padding

    @property
    def given(self) -> PatchInput:
        return PatchInput(self.values, self.places, self.table, self.segments)


class PatchPacker:
    """Packs images for one run of a vision tower."""

    def __init__(self, vision: VisionConfig) -> None:
        self.vision = vision
        self.width = vision.width

    def places_taken(self, span: MediaSpan) -> int:
        """Patches of an image, class vectors included."""
        frames, rows, columns = span.grid
        return frames * (rows * columns + class_places(self.vision))

    def pack(self, spans: Sequence[MediaSpan], size: int, capacity: int) -> PackedPatches:
        """Pack images, padded to `size` patches, for an encoder array of `capacity` rows."""
        vision = self.vision
        packed = PackedPatches(
            np.zeros((size, vision.patch_values), np.float32),
            np.zeros((2, size), np.int32),
            np.zeros((2, size), np.float32),
            np.full((2, size), -1, np.int32),
            np.full(size // vision.merger.patches, capacity, np.int32),
        )
        first = segment = 0
        for span in spans:
            taken, after = self.places_taken(span), class_places(vision)
            each = taken // span.grid[0]
            for frame in range(span.grid[0]):
                begin = first + frame * each
                inside = slice(begin + after, begin + each)
                place = places_of(span.grid[1:], vision.merger.side)
                packed.places[:, begin : begin + min(after, 1)] = -1
                packed.places[:, inside] = place
                packed.table[:, inside] = in_table(place, span.grid[1:], vision)
                packed.segments[0, begin : begin + min(after, 1)] = segment + frame
                packed.segments[0, inside] = segment + frame
                windows = windows_of(place, span.grid[1:], vision)
                packed.segments[1, inside] = segment + frame * (1 + windows.max()) + windows
            segment = 1 + int(packed.segments[:, first : first + taken].max())
            patches = np.arange(first, first + taken).reshape(-1, each)[:, after:].reshape(-1)
            packed.values[patches] = values_of(span, vision)
            packed.rows[patches[:: vision.merger.patches] // vision.merger.patches] = span.places
            first += taken
        return packed


def class_places(vision: VisionConfig) -> int:
    """Places before an image's patches: a class vector, padded to a whole token."""
    return vision.merger.patches if vision.class_vector else 0


def values_of(span: MediaSpan, vision: VisionConfig) -> np.ndarray:
    """Values of each patch; a still image is repeated for the frames of a patch."""
    values = np.frombuffer(span.values, np.float32)
    area = vision.patch_size**2
    count = span.grid[0] * span.grid[1] * span.grid[2]
    apart = values.reshape(count, vision.channels, -1, area)
    return np.broadcast_to(apart, (count, vision.channels, vision.frames, area)).reshape(count, -1)


def places_of(grid: tuple[int, ...], side: int) -> np.ndarray:
    """i32[2, patches]: row and column of each patch, ordered by merged square."""
    rows, columns = grid
    squares = np.indices((rows // side, columns // side, side, side)).reshape(4, -1)
    return squares[:2] * side + squares[2:]


def in_table(place: np.ndarray, grid: tuple[int, ...], vision: VisionConfig) -> np.ndarray:
    """Positions scaled to the learned position table, corner to corner."""
    if not vision.table_side:
        return place
    lines = [
        np.linspace(0, vision.table_side - 1, count, dtype=np.float32)[own]
        for count, own in zip(grid, place, strict=True)
    ]
    return np.stack(lines)


def windows_of(place: np.ndarray, grid: tuple[int, ...], vision: VisionConfig) -> np.ndarray:
    """Index of each patch's attention window within its frame."""
    if not vision.window:
        return np.zeros(place.shape[1], np.int32)
    side = vision.window // vision.merger.side // vision.patch_size * vision.merger.side
    rows, columns = place // side
    return rows * (1 + columns.max()) + columns
