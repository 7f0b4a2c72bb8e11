"""A recording of steps: plans with the tokens they led to, and what an engine needs to run them
again. It is written as msgpack.

It holds token ids of prompts and answers: it is as private as they are. Must not know executors.
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
    settings: dict[str, Any]  # of EngineArgs, with which such an engine is built again
    schedule: ScheduleConfig
    cache: CacheConfig


class RecordedStep(msgspec.Struct):
    """One step. Without tokens if it failed or was never read."""

    plan: Plan
    tokens: bytes | None = None  # i32[entries that want tokens, tokens of each]
    problem: str | None = None  # the error that it raised

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
    dropped: int  # steps before these that it does not hold any more
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
