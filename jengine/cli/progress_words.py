"""Engine startup progress as text, for /health."""

from __future__ import annotations

from jengine.engine.process.to_front import Progress


def in_words(progress: Progress) -> str:
    words = progress.stage
    if progress.total:
        words += f": {progress.done:g} of {progress.total:g} {progress.unit}".rstrip()
    if progress.seconds_left is not None:
        words += f", about {progress.seconds_left:.0f} s left"
    return words
