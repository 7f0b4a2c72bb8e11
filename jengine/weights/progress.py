"""What loading needs of a progress bar, which counts bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ProgressBar(Protocol):
    """What loading needs of a bar."""

    def update(self, n: float) -> object: ...

    def close(self) -> object: ...


# Makes a bar from what is being done and the number of bytes that it takes.
ProgressFactory = Callable[[str, int], ProgressBar]
