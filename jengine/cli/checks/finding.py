"""One finding of `jengine doctor`: how serious, about what, and what to do. Plain data."""

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
