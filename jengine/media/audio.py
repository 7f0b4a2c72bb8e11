"""Audio as users give it: arrays with a sampling rate, or files. Out: samples at the model's rate.

Files are read by the standard library (WAV), or by soundfile where that is installed.
"""

from __future__ import annotations

import importlib
import io
import wave
from typing import Any

import numpy as np

from jengine.errors import RequestError

LEAST_RATE, MOST_RATE = 100, 768_000
MOST_SECONDS = 600.0
# Bytes of a sample -> its type in WAV files; 3 bytes are read by hand.
TYPES = {1: np.uint8, 2: "<i2", 4: "<i4"}


def samples_of(given: Any, rate: int, what: str) -> np.ndarray:
    """float32 [samples] at this rate, of a pair (array, its own rate), or an array at this rate."""
    own = rate
    if isinstance(given, (tuple, list)) and len(given) == 2 and np.ndim(given[1]) == 0:
        given, own = given
    own = checked_rate(own, what)
    array = np.asarray(given)
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2) or not array.size:
        raise RequestError(
            f"{what} is an array of type {array.dtype} and shape {array.shape}; expected samples "
            "[samples] or [channels, samples] as floats, with their rate: (array, sampling_rate)."
        )
    if array.dtype.kind in "iu":
        raise RequestError(
            f"{what} has samples of type {array.dtype}; expected floats from -1 to 1. Divide "
            "integers by the largest number of their type."
        )
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise RequestError(f"{what} has samples that are not finite numbers.")
    if array.ndim == 2:  # the shorter axis is that of channels
        array = array.mean(axis=int(array.shape[0] > array.shape[1]))
    return resampled(array, own, rate)


def checked_rate(given: Any, what: str) -> int:
    """A sampling rate."""
    is_number = isinstance(given, (int, float, np.integer, np.floating))
    if not is_number or given != int(given) or not LEAST_RATE <= given <= MOST_RATE:
        raise RequestError(
            f"{what} has the sampling rate {given!r}; expected a whole number of samples in a "
            f"second, from {LEAST_RATE} to {MOST_RATE}."
        )
    return int(given)


def resampled(samples: np.ndarray, own: int, wanted: int) -> np.ndarray:
    """The samples at another rate, without the frequencies that it cannot hold.

    The spectrum is cut off or filled up. Silence on both sides keeps the end from reaching the
    beginning, as a spectrum is that of a sound that repeats.
    """
    if own == wanted:
        return samples
    margin = own // 10
    length = len(samples) + 2 * margin
    seconds = -(-length // own)  # in whole seconds both rates have whole numbers of samples
    spectrum = np.fft.rfft(samples, 1) if not len(samples) else np.fft.rfft(
        np.pad(samples, (margin, seconds * own - margin - len(samples)))
    )  # fmt: skip
    count = seconds * wanted
    found = np.fft.irfft(spectrum[: count // 2 + 1], count) * (wanted / own)
    begin = round(margin * wanted / own)
    return found[begin : begin + -(-len(samples) * wanted // own)].astype(np.float32)


def read_file(content: bytes, what: str) -> tuple[np.ndarray, int]:
    """Samples [samples] of one channel, and their rate."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        try:
            return _wav(content, what)
        except (wave.Error, EOFError) as error:
            if _soundfile() is None:
                raise RequestError(
                    f"{what} is a WAV file that cannot be read: {error}. Expected samples as "
                    "integers (PCM); install soundfile for other kinds."
                ) from None
    library = _soundfile()
    if library is None:
        raise RequestError(
            f"{what} is no WAV file (it begins with {content[:4]!r}); other formats are read where "
            "the package soundfile is installed. Convert it to WAV, or install soundfile."
        )
    try:
        with library.SoundFile(io.BytesIO(content)) as file:
            _check_length(file.frames, file.samplerate, what)
            samples = file.read(dtype="float32", always_2d=True)
            return samples.mean(axis=1), checked_rate(file.samplerate, what)
    except (RuntimeError, ValueError) as error:
        raise RequestError(f"{what} cannot be read: {error}") from None


def _soundfile() -> Any:
    try:
        return importlib.import_module("soundfile")
    except ImportError:
        return None


def _wav(content: bytes, what: str) -> tuple[np.ndarray, int]:
    with wave.open(io.BytesIO(content)) as file:
        rate, size = checked_rate(file.getframerate(), what), file.getsampwidth()
        _check_length(file.getnframes(), rate, what)
        data, channels = file.readframes(file.getnframes()), file.getnchannels()
    whole = len(data) // (size * channels) * size * channels
    if not whole:
        raise RequestError(f"{what} has no samples.")
    data = data[:whole]
    if size == 3:
        three = np.frombuffer(data, np.uint8).reshape(-1, 3)
        values = np.pad(three, ((0, 0), (1, 0))).reshape(-1).view("<i4").astype(np.float32)
        size = 4
    else:
        values = np.frombuffer(data, TYPES[size]).astype(np.float32)
    values = (values - 128) / 128 if size == 1 else values / 2.0 ** (8 * size - 1)
    return values.reshape(-1, channels).mean(axis=1), rate


def _check_length(samples: int, rate: int, what: str) -> None:
    if samples > MOST_SECONDS * rate:
        raise RequestError(
            f"{what} lasts {samples / rate:.0f} s; expected at most {MOST_SECONDS:.0f} s."
        )
