"""One finding of `jengine doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["OK", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """A "problem" keeps jengine from working properly; a "note" does not."""

    level: Level
    subject: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
