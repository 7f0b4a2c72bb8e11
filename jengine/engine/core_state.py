"""Snapshots of an engine core's state, kept by clients so that `state` never waits."""

from __future__ import annotations

import msgspec

from jengine.counts import Counts


class PartState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one of several cores behind a client."""

    name: str
    steps: int = 0  # ended since the start, failed ones included
    open_requests: int = 0  # of this front
    age: float = 0.0  # seconds since its last message
    compiling: bool = False  # a step waits for compilation
    death: str | None = None  # why it died


class CoreState(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a core. A hang shows in two numbers: `age` grows if its process is stuck,
    `stepping` if a step does not end."""

    counts: Counts = Counts()
    steps: int = 0  # ended since the start, failed ones included
    stepping: float = 0.0  # seconds since the step in progress began; 0: none runs
    compiling: bool = False  # that step waits for compilation, as far as known
    paused: bool = False
    dropped_frames: int = 0  # malformed messages of fronts
    age: float = 0.0  # seconds since this snapshot
    parts: tuple[PartState, ...] = ()  # per core, if there are several
