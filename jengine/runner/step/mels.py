"""Packs audio for one run of a speech encoder. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jengine.config import SpeechConfig
from jengine.media_spans import MediaSpan


class PackedMels(NamedTuple):
    """The spectrogram of one audio, and rows of the encoder's array for its keys and values."""

    values: Any  # f32[frames, mels]
    rows: Any  # i32[positions] out of range for padding

    @property
    def given(self) -> Any:
        return self.values


class MelPacker:
    """Packs one audio at a time: all have the same length."""

    def __init__(self, speech: SpeechConfig, width: int) -> None:
        self.speech = speech
        self.width = width

    def places_taken(self, span: MediaSpan) -> int:
        """Positions of an audio."""
        return self.speech.positions

    def pack(self, spans: Sequence[MediaSpan], size: int, capacity: int) -> PackedMels:
        """Pack the first span; without any, padding for an array of `capacity` rows."""
        shape = (self.speech.frames, self.speech.mels)
        for span in spans:
            return PackedMels(np.frombuffer(span.values, np.float32).reshape(shape), span.places)
        return PackedMels(np.zeros(shape, np.float32), np.full(size, capacity, np.int32))
