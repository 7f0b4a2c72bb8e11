"""A finding of the doctor: how serious, about what, and what to do. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["OK", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line. A problem stops jengine from working as it is meant to; a note does not."""

    level: Level
    subject: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


def gigabytes(count: float) -> str:
    """Bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
