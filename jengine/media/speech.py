"""Adds audio to prompts, as a spectrogram for the encoder.

In: token ids and `multi_modal_data`. Out: ids that begin with the decoder's start token, and the
audio's span.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from jengine.config import SpeechConfig
from jengine.errors import RequestError, nearest_name
from jengine.media.audio import samples_of
from jengine.media.sound_files import read_file
from jengine.media.sounds import SoundDecoders
from jengine.media_spans import MediaSpan


class SpeechProcessor:
    """Adds audio to prompts by one model's rules. Thread-safe."""

    def __init__(self, speech: SpeechConfig, limits: Mapping[str, int] | None = None) -> None:
        """`limits`: maximum items per kind, at most the model's one audio."""
        self.speech = speech
        self._most = min(1, (limits or {}).get("audio", 1))
        self.decoders = SoundDecoders()  # for untrusted files

    def opened(self, file: bytes, what: str) -> np.ndarray:
        """Decode an untrusted sound file."""
        self._check_count(1)
        return self.decoders.samples(file, self.speech.sampling_rate, what)

    def expanded(
        self, ids: list[int], data: Any, options: Mapping[str, Any] | None = None
    ) -> tuple[list[int], list[MediaSpan]]:
        """Return the prompt's ids and the audio's span. Raises RequestError."""
        if options:
            raise RequestError(
                f"mm_processor_kwargs has {', '.join(map(repr, options))}: audio is processed in "
                "one way. Leave it out."
            )
        span = self.span(self._one(data))
        start = self.speech.start_token
        return (ids if start in ids else [start, *ids]), [span]

    def span(self, samples: np.ndarray) -> MediaSpan:
        """The audio's span. Raises RequestError if it is too long."""
        speech = self.speech
        if len(samples) > speech.samples:
            raise RequestError(
                f"the audio lasts {len(samples) / speech.sampling_rate:.1f} s; this model reads "
                f"{speech.samples / speech.sampling_rate:g} s at a time. Cut it into parts, or use "
                "/v1/audio/transcriptions, which does."
            )
        values = log_mel(samples, speech).tobytes()
        return MediaSpan(
            offset=0,
            length=speech.positions,
            key=sha256(values).hexdigest(),
            kind="audio",
            grid=(1, speech.frames, speech.mels),
            steps=(0, 0, 0),
            values=values,
        )

    def _check_count(self, count: int) -> None:
        if count > self._most:
            raise RequestError(
                f"At most {self._most} audio(s) may be provided in one prompt; got {count}."
            )

    def _one(self, data: Any) -> np.ndarray:
        """The single audio's samples. Raises RequestError."""
        if not isinstance(data, Mapping):
            raise RequestError(
                f"multi_modal_data is a {type(data).__name__}; expected {{'audio': (array, rate)}}."
            )
        for kind in data:
            if kind != "audio":
                raise RequestError(
                    f"multi_modal_data has no key {kind!r} for this model; known: audio."
                    f"{nearest_name(str(kind), ('audio',))}"
                )
        given = data.get("audio")
        if given is None:
            raise RequestError("multi_modal_data has no audio; expected {'audio': (array, rate)}.")
        several = isinstance(given, list) and given and not np.isscalar(given[0])
        self._check_count(len(given) if several else 1)
        if several:
            given = given[0]
        if isinstance(given, (str, Path)):
            try:
                given = Path(given).read_bytes()
            except OSError as error:
                raise RequestError(f"audio {str(given)!r}: {error.strerror}.") from None
        if isinstance(given, (bytes, bytearray)):
            given = read_file(bytes(given), "the audio")
        return samples_of(given, self.speech.sampling_rate, "the audio")


# Slaney's mel scale (Auditory Toolbox): linear up to 1000 Hz, logarithmic above.
LINEAR_STEP, LINEAR_END, LOG_STEP = 200.0 / 3, 1000.0, np.log(6.4) / 27.0
FLOOR, RANGE = 1e-10, 8.0  # energy floor, and dynamic range below the maximum, in log10
FRAMES_AT_ONCE = 1024


def log_mel(samples: np.ndarray, speech: SpeechConfig) -> np.ndarray:
    """Spectrogram of audio padded with silence, float32 [frames, mels]."""
    filled = np.zeros(speech.samples, np.float64)
    filled[: len(samples)] = samples
    half = speech.window // 2
    padded = np.pad(filled, half, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, speech.window)[:: speech.hop]
    frames = frames[: speech.frames]
    turns = 2 * np.pi * np.arange(speech.window) / speech.window
    hann = 0.5 - 0.5 * np.cos(turns)
    filters = mel_filters(speech.window, speech.mels, speech.sampling_rate)
    energies = np.empty((len(frames), speech.mels))
    for begin in range(0, len(frames), FRAMES_AT_ONCE):
        part = frames[begin : begin + FRAMES_AT_ONCE] * hann
        energies[begin : begin + len(part)] = np.abs(np.fft.rfft(part)) ** 2 @ filters
    logs = np.log10(np.maximum(energies, FLOOR))
    logs = np.maximum(logs, logs.max() - RANGE)
    return ((logs + 4.0) / 4.0).astype(np.float32)


@cache
def mel_filters(window: int, mels: int, rate: int) -> np.ndarray:
    """Slaney mel filter bank, normalised by area: [frequencies, mels]."""
    frequencies = np.linspace(0, rate // 2, 1 + window // 2)
    corners = hertz(np.linspace(0.0, mel(min(8000.0, rate / 2)), mels + 2))
    widths = np.diff(corners)
    distance = corners[None, :] - frequencies[:, None]
    rising, falling = -distance[:, :-2] / widths[:-1], distance[:, 2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (corners[2:] - corners[:-2]))


def mel(frequency: float) -> float:
    if frequency < LINEAR_END:
        return frequency / LINEAR_STEP
    return LINEAR_END / LINEAR_STEP + float(np.log(frequency / LINEAR_END)) / LOG_STEP


def hertz(mels: np.ndarray) -> np.ndarray:
    first = LINEAR_END / LINEAR_STEP
    above = LINEAR_END * np.exp(LOG_STEP * (mels - first))
    return np.where(mels < first, mels * LINEAR_STEP, above)
