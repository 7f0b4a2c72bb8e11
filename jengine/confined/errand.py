"""The work for one client, wherever it runs: its deadline and its cancellation.

A lane sets the current errand around its work; what runs in a confined process takes its deadline
from there, and is killed with it. Work without an errand (a user's own) has no deadline of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jengine.errors import RequestError


class GivenUp(RequestError):
    """The errand exceeded its deadline, or its client left."""


class Errand:
    """Work with a deadline, which does not run while it waits for a process to start."""

    def __init__(self, seconds: float, *, confined: bool = False) -> None:
        """`confined`: use a confined process wherever possible, even for small work."""
        self.seconds = seconds
        self.confined = confined
        self._until = time.monotonic() + seconds
        self._paused: float | None = None
        self._lock = threading.Lock()
        self._kill: Callable[[], None] | None = None
        self._cancelled = False

    @property
    def left(self) -> float:
        """Seconds left; 0 once cancelled."""
        return 0.0 if self._cancelled else -self.overdue

    @property
    def overdue(self) -> float:
        """Seconds past the deadline; negative before it."""
        now = self._paused
        return (time.monotonic() if now is None else now) - self._until

    def cancel(self) -> None:
        """Cancel from any thread: processes that work for it are killed."""
        with self._lock:
            self._cancelled = True
            self._until = min(self._until, time.monotonic())
            if self._kill is not None:
                self._kill()

    def check(self) -> None:
        """Raise GivenUp once it is over."""
        if self.left <= 0:
            raise self.given_up()

    def given_up(self) -> GivenUp:
        """The error for its client."""
        return GivenUp(
            f"Rendering and tokenizing the prompt took longer than {self.seconds:g} seconds and "
            "was given up. Send a shorter prompt."
        )

    @contextmanager
    def run_by(self, kill: Callable[[], None]) -> Iterator[None]:
        """Within, cancelling the errand calls `kill`."""
        with self._lock:
            if self._cancelled:
                raise self.given_up()
            self._kill = kill
        try:
            yield
        finally:
            with self._lock:
                self._kill = None

    @contextmanager
    def starting_a_process(self) -> Iterator[None]:
        """Within, time does not count: the next one finds the process running."""
        self._paused = time.monotonic()
        try:
            yield
        finally:
            self._until += time.monotonic() - self._paused
            self._paused = None


current: ContextVar[Errand | None] = ContextVar("errand", default=None)
