"""The bodies of responses and chunks of /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from jengine.server.formats.usage import Usage


class DurationUsage(msgspec.Struct):
    """How much audio was read."""

    type: str
    seconds: int


class TextResponse(msgspec.Struct, kw_only=True):
    """What was said; a translation tells no usage."""

    text: str
    usage: DurationUsage | UnsetType = UNSET


class Segment(msgspec.Struct, kw_only=True):
    """What was said between two times."""

    id: int
    avg_logprob: float
    compression_ratio: float
    end: float
    no_speech_prob: float | None = None
    seek: int
    start: float
    temperature: float
    text: str
    tokens: list[int]


class VerboseResponse(msgspec.Struct, kw_only=True):
    """What was said, and when."""

    duration: float
    language: str
    text: str
    segments: list[Segment]
    words: list[Any] | None = None


class AudioDelta(msgspec.Struct):
    """New text."""

    content: str


class AudioChoice(msgspec.Struct, kw_only=True):
    """What is new, and why the answer ends where it does."""

    delta: AudioDelta
    finish_reason: str | UnsetType | None = UNSET
    stop_reason: int | str | UnsetType | None = UNSET


class AudioChunk(msgspec.Struct, kw_only=True):
    """One event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[AudioChoice]
    usage: Usage | UnsetType = UNSET
