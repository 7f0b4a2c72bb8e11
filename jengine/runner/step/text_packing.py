"""Packs texts for one run of a text encoder. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jengine.media_spans import MediaSpan
from jengine.models.text_encoder import TextInput


class PackedTexts(NamedTuple):
    """Texts of one encoder run, concatenated. `rows` index the array that keeps their encoder
    outputs' keys and values."""

    ids: Any  # i32[tokens]
    positions: Any  # i32[tokens]
    segments: Any  # i32[tokens]
    rows: Any  # i32[tokens] out of range for padding

    @property
    def given(self) -> TextInput:
        return TextInput(self.ids, self.positions, self.segments)


class TextPacker:
    """Concatenates texts for one run."""

    def __init__(self, width: int) -> None:
        self.width = width

    def places_taken(self, span: MediaSpan) -> int:
        return span.length

    def pack(self, spans: Sequence[MediaSpan], size: int, capacity: int) -> PackedTexts:
        """Pad the texts to `size` tokens; rows of padding are `capacity`, so that scatters drop
        them."""
        ids, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
        segments, rows = np.full(size, -1, np.int32), np.full(size, capacity, np.int32)
        first = 0
        for number, span in enumerate(spans):
            inside = slice(first, first + span.length)
            ids[inside] = np.frombuffer(span.values, np.int32)
            positions[inside] = np.arange(span.length)
            segments[inside] = number
            rows[inside] = span.places
            first += span.length
        return PackedTexts(ids, positions, segments, rows)
