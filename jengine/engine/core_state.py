"""State of an engine core, kept by clients so that they can answer without waiting."""

from __future__ import annotations

import msgspec

from jengine.counts import Counts


class PartState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one of several cores behind a client."""

    name: str
    steps: int = 0  # ended since the start
    open_requests: int = 0  # of this front
    age: float = 0.0  # seconds since it said something
    compiling: bool = False  # its step waits for a program
    death: str | None = None  # how it has died


class CoreState(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a core. A hang shows in two numbers: `age` grows if its process is stuck,
    `stepping` if a step does not end."""

    counts: Counts = Counts()
    steps: int = 0  # ended since the start
    stepping: float = 0.0  # seconds that the step in progress has taken so far; 0: none runs
    compiling: bool = False  # that step waits for a program, as far as the core knows
    paused: bool = False
    dropped_frames: int = 0  # messages of fronts that could not be read
    age: float = 0.0  # seconds since the core said this
    parts: tuple[PartState, ...] = ()  # each of several cores
