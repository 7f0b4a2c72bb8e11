"""A progress bar in bytes for whoever loads weights; silent when stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tqdm import tqdm


class ProgressBar(Protocol):
    """What loading needs of a bar."""

    def update(self, n: float) -> object: ...

    def close(self) -> object: ...


# Makes a bar from what is being done and the number of bytes that it takes.
ProgressFactory = Callable[[str, int], ProgressBar]


def terminal_bar(label: str, total: int) -> ProgressBar:
    """A bar on stderr, if that is a terminal."""
    # tqdm reads None as "off unless it is a terminal".
    return tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=None)
