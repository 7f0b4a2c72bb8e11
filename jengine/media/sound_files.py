"""Decodes sound files: WAV by the standard library, others by soundfile if installed.

In: file contents. Out: mono samples and their rate. Memory is estimated from the header, and blocks
are read one at a time.
"""

from __future__ import annotations

import importlib
import io
import struct
import wave
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from jengine.errors import RequestError
from jengine.media.audio import checked_rate
from jengine.media.budget import SOUND_BYTES, check_request

MOST_SECONDS = 600.0
BLOCK = 2**16  # frames per read
# Bytes per sample -> WAV dtype; 3-byte samples are unpacked by hand.
TYPES = {1: np.uint8, 2: "<i2", 3: None, 4: "<i4"}


class Head(NamedTuple):
    """A sound file's header."""

    frames: int
    rate: int
    channels: int


def read_file(content: bytes, what: str) -> tuple[np.ndarray, int]:
    """Mono samples f32, and their rate. Raises RequestError."""
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        try:
            return _wav(content, what)
        # RuntimeError: a chunk that exceeds the file.
        except (wave.Error, EOFError, RuntimeError, struct.error) as error:
            if _soundfile() is None:
                raise RequestError(
                    f"{what} is a WAV file that cannot be read: {error or 'a chunk is cut off'}. "
                    "Expected samples as integers (PCM) of 8 to 32 bits; install soundfile for "
                    "other kinds."
                ) from None
    library = _soundfile()
    if library is None:
        raise RequestError(
            f"{what} is no WAV file (it begins with {content[:4]!r}); other formats are read where "
            "the package soundfile is installed. Convert it to WAV, or install soundfile."
        )
    try:
        with library.SoundFile(io.BytesIO(content)) as file:
            head = Head(file.frames, checked_rate(file.samplerate, what), file.channels)
            return one_channel(file.blocks(BLOCK, dtype="float32", always_2d=True), head, what)
    except RequestError:
        raise
    except (RuntimeError, ValueError) as error:
        problem = str(error).rpartition(": ")[2]  # without Python's name of the file
        raise RequestError(f"{what} cannot be read: {problem}") from None


def one_channel(blocks: Iterable[np.ndarray], head: Head, what: str) -> tuple[np.ndarray, int]:
    """Mix blocks f32[frames, channels] down to mono. Raises RequestError if too long."""
    if head.frames > MOST_SECONDS * head.rate:
        raise RequestError(
            f"{what} lasts {head.frames / head.rate:.0f} s; expected at most {MOST_SECONDS:.0f} s."
        )
    check_request(f"the samples of {what}", head.frames * head.channels * 4, SOUND_BYTES)
    samples, filled = np.zeros(head.frames, np.float32), 0
    for block in blocks:
        mean = block.mean(axis=1)[: head.frames - filled]
        samples[filled : filled + len(mean)] = mean
        filled += len(mean)
    if not filled:
        raise RequestError(f"{what} has no samples.")
    return samples[:filled], head.rate


def _soundfile() -> Any:
    try:
        return importlib.import_module("soundfile")
    except ImportError:
        return None


def _wav(content: bytes, what: str) -> tuple[np.ndarray, int]:
    with wave.open(io.BytesIO(content)) as file:
        rate, size = checked_rate(file.getframerate(), what), file.getsampwidth()
        if size not in TYPES:
            raise wave.Error(f"its samples have {8 * size} bits")
        # Live recorders do not know the length and write a large one.
        frames = min(file.getnframes(), len(content) // (size * file.getnchannels()))
        head = Head(frames, rate, file.getnchannels())
        return one_channel(_wav_blocks(file, head.channels), head, what)


def _wav_blocks(file: wave.Wave_read, channels: int) -> Iterator[np.ndarray]:
    size = file.getsampwidth()
    while data := file.readframes(BLOCK):
        whole = len(data) // (size * channels) * size * channels
        if whole:
            yield _numbers(data[:whole], size).reshape(-1, channels)


def _numbers(data: bytes, size: int) -> np.ndarray:
    """PCM samples as f32 in [-1, 1]."""
    if size == 3:
        three = np.frombuffer(data, np.uint8).reshape(-1, 3)
        values = np.pad(three, ((0, 0), (1, 0))).reshape(-1).view("<i4").astype(np.float32)
        return values / 2.0**31
    values = np.frombuffer(data, TYPES[size]).astype(np.float32)
    return (values - 128) / 128 if size == 1 else values / 2.0 ** (8 * size - 1)
