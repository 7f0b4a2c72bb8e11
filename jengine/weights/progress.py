"""Interface of a progress bar that counts bytes while loading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ProgressBar(Protocol):
    """The methods of a tqdm bar used by loading."""

    def update(self, n: float) -> object: ...

    def close(self) -> object: ...


# Makes a bar from a label and a total in bytes.
ProgressFactory = Callable[[str, int], ProgressBar]
