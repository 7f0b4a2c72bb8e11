"""Recordings of steps for replay, as msgpack: plans, sampled tokens, the engine's configuration.

They hold token ids of prompts and answers, and are as private. Must not know executors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jengine.config import CacheConfig, ScheduleConfig
from jengine.errors import ConfigError
from jengine.plan import Plan

FORMAT = "jengine recording 2"


class Origin(msgspec.Struct, frozen=True):
    """Configuration of the engine that made a recording."""

    version: str
    model: str  # its folder; empty if the model was live
    settings: dict[str, Any]  # EngineArgs from which an equal engine can be built
    schedule: ScheduleConfig
    cache: CacheConfig


class RecordedStep(msgspec.Struct):
    """One step. `tokens` is None if it failed or was never read."""

    plan: Plan
    tokens: bytes | None = None  # see `sampled`
    problem: str | None = None  # the error raised

    @property
    def sampled(self) -> np.ndarray | None:
        """i32[entries that sample, tokens per entry]."""
        if self.tokens is None:
            return None
        wanting = int(self.plan.entries.wants_tokens.sum())
        return np.frombuffer(self.tokens, np.int32).reshape(wanting, -1 if wanting else 0)


class Recording(msgspec.Struct, frozen=True):
    origin: Origin
    reason: str  # why it was written
    dropped: int  # earlier steps that were dropped
    steps: list[RecordedStep]
    format: str = FORMAT


def write_recording(recording: Recording, path: Path) -> None:
    """Write atomically, readable by the owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.msgpack.encode(recording))
    part.rename(path)


def read_recording(path: Path) -> Recording:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}.") from error
    try:
        recording = msgspec.msgpack.decode(data, type=Recording)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected a recording, as an engine with flight_recorder=FOLDER writes it: "
            f"{error}."
        ) from error
    if recording.format != FORMAT:
        raise ConfigError(f"{path}: its format is {recording.format!r}; expected {FORMAT!r}.")
    return recording
