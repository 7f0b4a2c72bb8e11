"""Response bodies and chunks of /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from jengine.server.formats.usage import Usage


class DurationUsage(msgspec.Struct):
    """Usage of a transcription: seconds of audio."""

    type: str
    seconds: int


class TextResponse(msgspec.Struct, kw_only=True):
    """Response of `response_format="json"`; translations have no usage."""

    text: str
    usage: DurationUsage | UnsetType = UNSET


class Segment(msgspec.Struct, kw_only=True):
    """Text between two timestamps, as in OpenAI's verbose_json."""

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
    """Response of `response_format="verbose_json"`."""

    duration: float
    language: str
    text: str
    segments: list[Segment]
    words: list[Any] | None = None


class AudioDelta(msgspec.Struct):
    content: str


class AudioChoice(msgspec.Struct, kw_only=True):
    """New text of a stream, with the finish reason at its end."""

    delta: AudioDelta
    finish_reason: str | UnsetType | None = UNSET
    stop_reason: int | str | UnsetType | None = UNSET


class AudioChunk(msgspec.Struct, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[AudioChoice]
    usage: Usage | UnsetType = UNSET
