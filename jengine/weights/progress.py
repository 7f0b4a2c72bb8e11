"""What loading needs of a progress bar, which counts bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ProgressBar(Protocol):
    """The methods of a tqdm bar that loading calls."""

    def update(self, n: float) -> object: ...

    def close(self) -> object: ...


# Makes a bar from a label and a total in bytes.
ProgressFactory = Callable[[str, int], ProgressBar]
