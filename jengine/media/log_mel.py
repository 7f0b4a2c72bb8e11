"""Log-mel spectrograms in numpy, equal to transformers' WhisperFeatureExtractor.

In: mono samples at the model's rate. Out: float32 [frames, mels]. Must not know files or prompts.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from jengine.config import SpeechConfig

# The scale of Slaney's Auditory Toolbox: linear up to 1000 Hz, logarithmic above.
LINEAR_STEP, LINEAR_END, LOG_STEP = 200.0 / 3, 1000.0, np.log(6.4) / 27.0
FLOOR, RANGE = 1e-10, 8.0  # the least energy; how far below the loudest values are kept, in tens
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
