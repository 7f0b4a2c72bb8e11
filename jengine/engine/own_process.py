"""Detects use of an engine in a forked child, which lacks its threads and devices."""

from __future__ import annotations

import os

from jengine.errors import EngineDead


class OwnProcess:
    """The process that created this object."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        return os.getpid() == self._process

    def check(self) -> None:
        """Raise EngineDead in a forked child."""
        if not self.is_here:
            raise EngineDead(
                f"this engine belongs to process {self._process}, and this is process "
                f"{os.getpid()}, a fork of it, which has none of its threads and devices. Use the "
                "engine in its own process, or create one in each child: start children with "
                "multiprocessing.get_context('spawn')."
            )
