"""Progress bars and messages for people who wait: bars on terminals and in notebooks only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

ProgressFactory = Callable[..., Any]


# Warm-up that takes longer than this many seconds is explained.
SLOW = 5.0


@contextmanager
def explained_if_slow(message: Callable[[], str], wanted: bool = True) -> Iterator[None]:
    """Write one line to stderr if the block takes long: where there is no terminal, no bar is
    drawn."""

    def explain() -> None:
        if sys.stderr is not None:
            tqdm.write(message(), file=sys.stderr)

    timer = threading.Timer(SLOW, explain)
    timer.daemon = True
    if wanted:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    return "ipykernel" in sys.modules


def progress_factory(wanted: bool | ProgressFactory | None) -> ProgressFactory:
    """A tqdm factory. None: on in a terminal or notebook. A callable is used as it is.

    A bar disappears when it is complete, and a bar for nothing is not drawn.
    """
    if callable(wanted):
        return wanted
    visible = in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    shown = visible if wanted is None else wanted and visible

    def bar(**options: Any) -> Any:
        idle = not shown or options.get("total") == 0
        return tqdm(None, dynamic_ncols=True, disable=idle, leave=False, **options)

    return bar
