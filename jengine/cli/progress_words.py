"""How far an engine's start is, in words for the answer of /health."""

from __future__ import annotations

from jengine.engine.process.to_front import Progress


def in_words(progress: Progress) -> str:
    """One line."""
    words = progress.stage
    if progress.total:
        words += f": {progress.done:g} of {progress.total:g} {progress.unit}".rstrip()
    if progress.seconds_left is not None:
        words += f", about {progress.seconds_left:.0f} s left"
    return words
